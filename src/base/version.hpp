// SPDX-License-Identifier: Apache-2.0
// What this build is: for `--version`, reports and result files. The values are those of the
// moment CMake configured the build; a commit made after that shows at the next configure.
#pragma once

#include <string>

namespace tessera {

struct BuildInfo {
  std::string version;     ///< project version, "0.1.0"
  std::string git_hash;    ///< short commit, "unknown" outside a git checkout
  bool dirty = false;      ///< tracked files differed from that commit
  std::string compiler;    ///< "GNU 12.2.0"
  std::string build_type;  ///< "Release"
};

const BuildInfo& build_info();

/// One line: "tessera 0.1.0 (1a2b3c4d5e6f, modified), GNU 12.2.0, Release".
std::string version_line();

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// CLI11 with our manners: an unknown option gets the nearest name as a hint and exit code 2, and
// on several ranks only rank 0 speaks.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

namespace tessera::drivers {

/// Parses; returns an exit code when the program is done already (--help, --version: printed when
/// `speaks`). Error(usage) with a hint on a wrong command line: it is wrong on all ranks alike, so
/// callers with ranks wrap this into parallel::together.
std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv, bool speaks);

}  // namespace tessera::drivers

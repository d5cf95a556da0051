// SPDX-License-Identifier: Apache-2.0
#include "base/version.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(base, version_line_names_everything) {
  const BuildInfo& b = build_info();
  for (const std::string& part : {b.version, b.git_hash, b.compiler, b.build_type}) {
    EXPECT_FALSE(part.empty());
    EXPECT_EQ(part.find('@'), std::string::npos) << part;  // nothing left to be filled in
    EXPECT_NE(version_line().find(part), std::string::npos) << part;
  }
  EXPECT_EQ(version_line().find("modified") != std::string::npos, b.dirty);
}

}  // namespace
}  // namespace tessera

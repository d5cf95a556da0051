// SPDX-License-Identifier: Apache-2.0
#include "base/suggest.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

const std::vector<std::string> names{"attention.sequence", "attention.head_dim", "run.warmup",
                                     "ring"};

TEST(base, edit_distance_known_pairs) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("abc", "acb"), 1);  // a swap is one slip of the finger
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

TEST(base, nearest_typo_is_found) {
  EXPECT_EQ(nearest("attention.sequnce", names), "attention.sequence");
  EXPECT_EQ(nearest("atention.head-dim", names), "attention.head_dim");
  EXPECT_EQ(nearest("rnig", names), "ring");
}

TEST(base, nearest_forgotten_section_is_found) {
  EXPECT_EQ(nearest("head_dim", names), "attention.head_dim");
  EXPECT_EQ(nearest("model.warmup", names), "run.warmup");
}

TEST(base, nearest_nothing_when_far) {
  EXPECT_EQ(nearest("zzzzzz", names), "");
  EXPECT_EQ(nearest("q", names), "");
  EXPECT_EQ(nearest("attention.sequence", std::vector<std::string>{}), "");
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "io/selection.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace tessera::io {
namespace {

TEST(io, selection_counts_and_maps_indices) {
  const Selection zigzag = rows({{0, 1, 4}, {28, 1, 4}});
  EXPECT_EQ(zigzag.count(), 8);
  EXPECT_EQ(zigzag.index(3), 3);
  EXPECT_EQ(zigzag.index(4), 28);
  EXPECT_EQ(rows({{2, 5, 3}}).index(2), 12);
  EXPECT_THROW(zigzag.index(8), std::logic_error);
}

TEST(io, cut_keeps_order_and_covers_every_index_once) {
  const std::vector<Slab> slabs{{1, 3, 5}, {20, 1, 7}, {40, 2, 1}, {50, 4, 6}};
  const Selection all = rows(slabs);
  for (std::int64_t step = 1; step <= all.count(); ++step) {
    std::vector<std::int64_t> seen;
    for (std::int64_t b = 0; b < all.count(); b += step) {
      const Selection part = rows(cut(slabs, {b, std::min(b + step, all.count())}));
      for (std::int64_t i = 0; i < part.count(); ++i) seen.push_back(part.index(i));
    }
    ASSERT_EQ(static_cast<std::int64_t>(seen.size()), all.count());
    for (std::int64_t i = 0; i < all.count(); ++i) ASSERT_EQ(seen[i], all.index(i)) << step;
  }
}

TEST(io, cut_joins_batches_of_a_striped_layout) {
  // Rank 1 of 4, two sequences of 8 tokens folded into one dimension.
  EXPECT_EQ(cut({{1, 4, 2}, {9, 4, 2}}, {0, 4}), (std::vector<Slab>{{1, 4, 4}}));
  EXPECT_EQ(cut({{0, 1, 4}, {4, 1, 4}}, {0, 8}), (std::vector<Slab>{{0, 1, 8}}));
  EXPECT_EQ(cut({{0, 1, 4}, {5, 1, 4}}, {0, 8}), (std::vector<Slab>{{0, 1, 4}, {5, 1, 4}}));
  EXPECT_TRUE(cut({{0, 1, 4}}, {4, 4}).empty());
}

TEST(io, misfit_names_index_and_dimension) {
  EXPECT_EQ(misfit(rows({{0, 1, 8}}), {8, 2}), "");
  EXPECT_NE(misfit(rows({{0, 1, 9}}), {8, 2}).find("index 8 of dimension 0"), std::string::npos);
  EXPECT_NE(misfit(rows({{0, 7, 3}}), {8, 2}).find("index 14"), std::string::npos);
  Selection heads = rows({{0, 1, 8}});
  heads.within[1] = Range{1, 3};
  EXPECT_NE(misfit(heads, {8, 2}).find("range [1, 3) of dimension 1"), std::string::npos);
  EXPECT_NE(misfit({{{0, 1, 1}}, 2, {}}, {8, 2}).find("no dimension 2"), std::string::npos);
  EXPECT_THROW(misfit(rows({{4, 1, 4}, {0, 1, 4}}), {8}), std::logic_error);
}

TEST(io, call_limit_is_below_what_an_int_counts) {
  EXPECT_LT(max_call_bytes, std::int64_t{1} << 31);
}

}  // namespace
}  // namespace tessera::io

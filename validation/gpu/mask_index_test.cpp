// SPDX-License-Identifier: Apache-2.0
// The lists that kernels walk against a cell-by-cell look at the mask; needs no device.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kernels/cuda/mask_index.hpp"
#include "validation/unit/kernels_support.hpp"

namespace tessera::testing {
namespace {

using namespace kernels::cuda;

bool in_band(const TileBand& b, int i, int j) {
  return i >= b.row0 && i < b.row1 && j >= b.col0 && j < b.col1 && j - i >= b.lo && j - i <= b.hi;
}

struct Cells {
  int rows, cols;
  std::vector<char> visible;
  Cells(std::span<const ops::Band> mask, int m, int n) : rows(m), cols(n), visible(m * n) {
    for (const ops::Band& b : mask) {
      for (int q = 0; q < m; ++q) {
        const Range keys = b.keys_of(q);
        for (auto k = std::max<std::int64_t>(keys.begin, 0);
             k < std::min<std::int64_t>(keys.end, n); ++k) {
          visible[q * n + k] = 1;
        }
      }
    }
  }
  bool at(int i, int j) const { return i < rows && j < cols && visible[i * cols + j]; }
};

/// Checks one block of the index against the cells; `flip` when rows of the index are keys.
void check_block(const TileIndex& index, const TileEntry* entry, const Cells& cells, bool flip,
                 int row0, int col0, int row_block, int col_block) {
  const auto at = [&](int i, int j) { return flip ? cells.at(j, i) : cells.at(i, j); };
  const int cols = flip ? cells.rows : cells.cols;
  bool any = false, all = true, holes = false;
  for (int j = col0; j < col0 + col_block; ++j) {
    bool seen = false;
    for (int i = row0; i < row0 + row_block; ++i) {
      seen = seen || at(i, j);
      any = any || at(i, j);
      all = all && at(i, j);
      if (!entry || !(entry->flags & tile_partial)) continue;
      bool banded = false;
      for (int b = 0; b < entry->band_count; ++b) {
        banded = banded || in_band(index.bands[entry->band_begin + b], i, j);
      }
      ASSERT_EQ(banded, at(i, j)) << "cell " << i << ", " << j;
    }
    holes = holes || (j < cols && !seen);
  }
  ASSERT_EQ(entry != nullptr, any) << "block at " << row0 << ", " << col0;
  if (!entry) return;
  EXPECT_EQ((entry->flags & tile_partial) == 0, all) << "block at " << row0 << ", " << col0;
  EXPECT_EQ((entry->flags & tile_holes) != 0, holes) << "block at " << row0 << ", " << col0;
}

void check_index(std::span<const ops::Band> mask, int m, int n, bool by_keys, int row_block,
                 int col_block) {
  const Cells cells(mask, m, n);
  std::vector<TileBand> bands = narrow(mask, m, n);
  if (by_keys) bands = transposed(std::move(bands));
  const int rows = by_keys ? n : m, cols = by_keys ? m : n;
  const TileIndex index = index_tiles(bands, rows, cols, row_block, col_block);
  std::map<std::pair<int, int>, const TileEntry*> entries;
  for (std::size_t i = 0; i < index.order.size(); ++i) {
    ASSERT_LT(index.begin[i], index.begin[i + 1]) << "a block without work is listed";
    if (i > 0) {
      EXPECT_GE(index.begin[i] - index.begin[i - 1], index.begin[i + 1] - index.begin[i]);
    }
    for (int e = index.begin[i]; e < index.begin[i + 1]; ++e) {
      if (e > index.begin[i]) {
        EXPECT_GT(index.entries[e].block, index.entries[e - 1].block);
      }
      entries[{index.order[i], index.entries[e].block}] = &index.entries[e];
    }
  }
  for (int r = 0; r * row_block < rows; ++r) {
    for (int c = 0; c * col_block < cols; ++c) {
      const auto found = entries.find({r, c});
      check_block(index, found == entries.end() ? nullptr : found->second, cells, by_keys,
                  r * row_block, c * col_block, row_block, col_block);
    }
  }
}

TEST(gpu_mask_index, agrees_with_cells_for_random_bands) {
  std::mt19937_64 rng(7);
  for (int round = 0; round < 60; ++round) {
    const int m = std::uniform_int_distribution(1, 150)(rng);
    const int n = std::uniform_int_distribution(1, 150)(rng);
    const auto mask = random_mask(rng, m, n);
    SCOPED_TRACE(::testing::Message() << "round " << round << ", " << m << " x " << n);
    check_index(mask, m, n, false, 32, 16);
    check_index(mask, m, n, true, 32, 8);
  }
}

TEST(gpu_mask_index, causal_has_partial_blocks_on_the_diagonal_only) {
  const ops::Band causal{0, 1024, 0, 1024, -open, 0};
  const TileIndex index = index_tiles(narrow({&causal, 1}, 1024, 1024), 1024, 1024, 128, 128);
  EXPECT_EQ(index.entries.size(), 36u);
  const auto partial = std::ranges::count_if(index.entries, [](auto& e) { return e.flags != 0; });
  EXPECT_EQ(partial, 8);
  EXPECT_EQ(index.order.front(), 7) << "the block with most work comes first";
}

TEST(gpu_mask_index, bands_that_cover_a_block_together_make_it_whole) {
  // Rows 0 to 99 see keys 0 to 255, the others keys 128 to 383; a second pair meets on a diagonal.
  const std::vector<ops::Band> steps{{0, 100, 0, 256, -open, open},
                                     {100, 256, 128, 384, -open, open}};
  const TileIndex index = index_tiles(narrow(steps, 256, 384), 256, 384, 128, 128);
  ASSERT_EQ(index.entries.size(), 5u);
  EXPECT_EQ(index.order, (std::vector<int>{0, 1}));
  EXPECT_EQ(index.entries[0].flags, tile_partial) << "rows 0 to 99 of the first block";
  EXPECT_EQ(index.entries[1].flags, 0) << "both bands";
  EXPECT_EQ(index.entries[2].flags, tile_partial) << "rows 100 to 127";
  EXPECT_EQ(index.entries[3].flags, 0);
  EXPECT_EQ(index.bands.size(), 2u);
  const std::vector<ops::Band> halves{{0, 128, 0, 128, -open, 7}, {0, 128, 0, 128, 8, open}};
  const TileIndex one = index_tiles(narrow(halves, 128, 128), 128, 128, 128, 128);
  ASSERT_EQ(one.entries.size(), 1u);
  EXPECT_EQ(one.entries[0].flags, 0);
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

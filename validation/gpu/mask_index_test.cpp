// SPDX-License-Identifier: Apache-2.0
// The lists that kernels walk against a cell-by-cell look at the mask; needs no device.
#include <gtest/gtest.h>

#include <algorithm>
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
  Cells flipped() const {
    Cells out({}, cols, rows);
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < cols; ++j) out.visible[j * rows + i] = at(i, j);
    }
    return out;
  }
  /// Clears a block; false if no cell of it was visible.
  bool take(TileRows block, int col, int col_block) {
    bool any = false;
    for (int i = block.begin; i < block.end; ++i) {
      for (int j = col; j < std::min(col + col_block, cols); ++j) {
        any = any || at(i, j);
        visible[i * cols + j] = 0;
      }
    }
    return any;
  }
};

/// What a cell-by-cell look says of a block.
struct Seen {
  bool all = true, holes = false;
};

bool in_entry(const TileIndex& index, const TileEntry& entry, int i, int j) {
  for (int b = 0; b < entry.band_count; ++b)
    if (in_band(index.bands[entry.band_begin + b], i, j)) return true;
  return false;
}

Seen look_at(const TileIndex& index, const TileEntry& entry, const Cells& cells, TileRows rows,
             int col_block) {
  Seen out;
  for (int j = entry.col; j < entry.col + col_block; ++j) {
    bool seen = false;
    for (int i = rows.begin; i < rows.end; ++i) {
      const bool visible = cells.at(i, j);
      seen = seen || visible;
      out.all = out.all && visible;
      if (!(entry.flags & tile_partial)) continue;
      EXPECT_EQ(in_entry(index, entry, i, j), visible) << "cell " << i << ", " << j;
    }
    out.holes = out.holes || (j < cells.cols && !seen);
  }
  return out;
}

/// Rows behind a block that was cut short belong to another block; kernels that sum over rows would
/// count them twice.
void check_rows_behind(const TileIndex& index, const TileEntry& entry, TileRows rows, int row_block,
                       int col_block) {
  for (int i = rows.end; i < rows.begin + row_block; ++i)
    for (int j = entry.col; j < entry.col + col_block; ++j)
      EXPECT_FALSE(in_entry(index, entry, i, j)) << "cell " << i << ", " << j;
}

/// Every cell that is visible stands in one block, and what is said of each block is right.
void check_index(std::span<const ops::Band> mask, int m, int n, bool by_keys, int row_block,
                 int col_block) {
  Cells cells(mask, m, n);
  if (by_keys) cells = cells.flipped();
  std::vector<TileBand> bands = narrow(mask, m, n);
  if (by_keys) bands = transposed(std::move(bands));
  const TileIndex index = index_tiles(bands, cells.rows, cells.cols, row_block, col_block, by_keys);
  Cells left = cells;
  for (std::size_t i = 0; i < index.rows.size(); ++i) {
    const TileRows rows = index.rows[i];
    ASSERT_LE(rows.end - rows.begin, row_block);
    ASSERT_LT(index.begin[i], index.begin[i + 1]) << "a block without work is listed";
    if (i > 0) {
      EXPECT_GE(index.begin[i] - index.begin[i - 1], index.begin[i + 1] - index.begin[i]);
    }
    for (int e = index.begin[i]; e < index.begin[i + 1]; ++e) {
      const TileEntry& entry = index.entries[e];
      if (e > index.begin[i]) {
        EXPECT_GE(entry.col, index.entries[e - 1].col + col_block);
      }
      SCOPED_TRACE(::testing::Message() << "block at " << rows.begin << ", " << entry.col);
      const Seen seen = look_at(index, entry, cells, rows, col_block);
      if (by_keys) check_rows_behind(index, entry, rows, row_block, col_block);
      const bool whole = !by_keys || rows.end - rows.begin == row_block;
      EXPECT_EQ((entry.flags & tile_partial) == 0, seen.all && whole);
      EXPECT_EQ((entry.flags & tile_holes) != 0, seen.holes);
      EXPECT_TRUE(left.take(rows, entry.col, col_block)) << "without a visible cell";
    }
  }
  EXPECT_EQ(std::ranges::count(left.visible, 1), 0) << "cells that no block has";
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
  const TileIndex index = index_tiles(narrow({&causal, 1}, 1024, 1024), 1024, 1024, 128, 128, true);
  EXPECT_EQ(index.entries.size(), 36u);
  const auto partial = std::ranges::count_if(index.entries, [](auto& e) { return e.flags != 0; });
  EXPECT_EQ(partial, 8);
  EXPECT_EQ(index.rows.front().begin, 896) << "the block with most work comes first";
}

TEST(gpu_mask_index, bands_that_cover_a_block_together_make_it_whole) {
  // Rows 0 to 99 see keys 0 to 255, the others keys 128 to 383; a second pair meets on a diagonal.
  const std::vector<ops::Band> steps{{0, 100, 0, 256, -open, open},
                                     {100, 256, 128, 384, -open, open}};
  const TileIndex index = index_tiles(narrow(steps, 256, 384), 256, 384, 128, 128, true);
  ASSERT_EQ(index.entries.size(), 5u);
  EXPECT_EQ(index.rows[0].begin, 0);
  EXPECT_EQ(index.entries[0].flags, tile_partial) << "rows 0 to 99 of the first block";
  EXPECT_EQ(index.entries[1].flags, 0) << "both bands";
  EXPECT_EQ(index.entries[2].flags, tile_partial) << "rows 100 to 127";
  EXPECT_EQ(index.entries[3].flags, 0);
  EXPECT_EQ(index.bands.size(), 2u);
  const std::vector<ops::Band> halves{{0, 128, 0, 128, -open, 7}, {0, 128, 0, 128, 8, open}};
  const TileIndex one = index_tiles(narrow(halves, 128, 128), 128, 128, 128, 128, true);
  ASSERT_EQ(one.entries.size(), 1u);
  EXPECT_EQ(one.entries[0].flags, 0);
}

TEST(gpu_mask_index, long_documents_have_blocks_of_their_own) {
  // Of 300 and 212 tokens: 3 and 2 blocks of rows, 1 + 2 + 3 and 1 + 2 entries, none across.
  const std::vector<ops::Band> two{{0, 300, 0, 300, -open, 0}, {300, 512, 300, 512, -open, 0}};
  const TileIndex index = index_tiles(narrow(two, 512, 512), 512, 512, 128, 128, true);
  ASSERT_EQ(index.rows.size(), 5u);
  EXPECT_EQ(index.entries.size(), 9u);
  for (std::size_t i = 0; i < index.rows.size(); ++i) {
    const int begin = index.rows[i].begin, document = begin < 300 ? 0 : 300;
    EXPECT_EQ((begin - document) % 128, 0);
    EXPECT_LE(index.rows[i].end, begin < 300 ? 300 : 512);
    for (int e = index.begin[i]; e < index.begin[i + 1]; ++e)
      EXPECT_EQ((index.entries[e].col - document) % 128, 0);
  }
}

TEST(gpu_mask_index, a_diagonal_does_not_run_on_behind_a_block_that_is_cut) {
  // Keys 300 to 899 are seen by queries 1000 to 1099 too, so their blocks begin at 300.
  const std::vector<ops::Band> mask{{0, 900, 0, 900, 0, 0}, {1000, 1100, 300, 900, -open, open}};
  check_index(mask, 1100, 1000, true, 128, 64);
  const TileIndex index =
      index_tiles(transposed(narrow(mask, 1100, 1000)), 1000, 1100, 128, 64, true);
  EXPECT_EQ(std::ranges::count(index.rows, 300, &TileRows::end), 1);
}

TEST(gpu_mask_index, short_documents_share_blocks) {
  std::vector<ops::Band> many;
  for (int at = 0; at < 512; at += 32) many.push_back({at, at + 32, at, at + 32, -open, 0});
  const TileIndex index = index_tiles(narrow(many, 512, 512), 512, 512, 128, 128, true);
  EXPECT_EQ(index.rows.size(), 4u);
  EXPECT_EQ(index.entries.size(), 4u);
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

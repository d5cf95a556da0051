// SPDX-License-Identifier: Apache-2.0
// The mask of a tile as lists that kernels walk: for every block of rows the blocks of columns with
// visible cells, wholly visible or with the bands that say what is. Made on the host, no CUDA here.
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/params.hpp"
#include "ops/call.hpp"

namespace tessera::kernels::cuda {

/// Host image of a TileList.
struct TileIndex {
  std::vector<TileRows> rows;
  std::vector<int> begin;
  std::vector<TileEntry> entries;
  std::vector<TileBand> bands;
};

/// Whether the parts, in any order and overlapping or not, leave nothing out of `whole`; false
/// for an empty one.
bool leave_no_gap(std::vector<Range> parts, Range whole);

/// Bands in 32 bits, cut to rows x cols; what has no visible cell is left out.
std::vector<TileBand> narrow(std::span<const ops::Band> mask, std::int64_t rows, std::int64_t cols);
/// Queries and keys change places.
std::vector<TileBand> transposed(std::vector<TileBand> bands);

/// Blocks of `row_block` x `col_block` of a mask of rows x cols. Blocks of columns begin where
/// there is something to see; a block of rows ends early where others begin that see none of its
/// columns, as the next document does. A block that reaches beyond the last column is never wholly
/// visible; one of fewer rows neither where `cut_rows_are_masked`: where sums run over the rows.
TileIndex index_tiles(std::span<const TileBand> mask, int rows, int cols, int row_block,
                      int col_block, bool cut_rows_are_masked);

}  // namespace tessera::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
// Mask geometry inside one tile: which keys a block of queries sees, cut into the rectangular
// pieces that become matrix products, and which keys a single row sees inside a piece.
#pragma once

#include <span>
#include <vector>

#include "ops/call.hpp"

namespace tessera::kernels::portable {

/// Smallest rectangle that holds the visible cells of `band` with query in q and key in k. A band
/// has no empty row or column inside it, so both sides are exact.
struct Rect {
  Range q, k;
  bool empty() const { return q.empty() || k.empty(); }
};
Rect visible_part(const ops::Band& band, Range q, Range k);

/// Queries (keys) of the given rectangle that see (are seen by) anything; sorted, disjoint.
std::vector<Range> visible_queries(std::span<const ops::Band> mask, Range q, Range k);
std::vector<Range> visible_keys(std::span<const ops::Band> mask, Range q, Range k);

/// A rectangle with visible cells. `full`: all cells are visible; else `bands` says which.
struct Piece {
  Range q, k;
  bool full = false;
  std::vector<ops::Band> bands;
};

/// Sizes in which a block of queries is cut: keys of a piece, and rows of a partly masked piece,
/// which is narrower so that fewer masked cells are computed along a diagonal.
struct Cut {
  std::int64_t keys, partial_rows;
};

/// Pieces that cover the visible cells of the rectangle exactly once, in order of keys.
std::vector<Piece> pieces(std::span<const ops::Band> mask, Range q, Range k, Cut cut);

/// Keys of the piece that row q sees, sorted and disjoint, into `out` (cleared first).
void keys_of_row(const Piece& piece, std::int64_t q, std::vector<Range>& out);

}  // namespace tessera::kernels::portable

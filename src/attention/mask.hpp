// SPDX-License-Identifier: Apache-2.0
// The one representation of attention masks: a list of disjoint bands over global packed rows
// (attention brief 6.5, level A), and what is derived from it: the bands of a tile, areas, the key
// rows that a set of query rows needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/layout.hpp"
#include "ops/call.hpp"

namespace tessera::attention {

using ops::Band;

/// Sequence lengths that a mask is made for; rows and columns are batch * length.
struct MaskShape {
  std::int64_t batch = 1;
  std::int64_t queries = 0;  ///< per batch item
  std::int64_t keys = 0;
};

/// The visible pairs of a tile, and the smallest ranges of its local rows that hold them.
struct Extent {
  std::int64_t area = 0;
  Range queries, keys;
};

/// Visible (query row, key row) pairs. Everything that is not in a band is masked.
class Mask {
 public:
  Mask() = default;
  /// Bands in global coordinates; Error(usage) naming the two bands if any two overlap, or the one
  /// that leaves the matrix.
  Mask(std::string kind, MaskShape shape, std::vector<Band> bands);

  const std::string& kind() const { return kind_; }
  const std::vector<Band>& bands() const { return bands_; }
  std::int64_t rows() const { return shape_.batch * shape_.queries; }
  std::int64_t cols() const { return shape_.batch * shape_.keys; }
  /// Number of visible pairs.
  std::int64_t area() const;
  /// Same on all ranks when the masks are the same (FNV-1a over the bands).
  std::uint64_t hash() const;

  /// Bands of the tile (q rows x k rows) in local coordinates, tight. Both sides of a band must
  /// come from segments of equal stride (one layout for queries and keys). What is one band is
  /// returned as one, though it was cut at the borders of segments: a rank's own zigzag tile of a
  /// causal mask is causal, any other is a rectangle. Operators are fastest on a single band.
  std::vector<Band> cut(const Rows& q, const Rows& k) const;
  Extent extent(const Rows& q, const Rows& k) const;
  std::int64_t area(const Rows& q, const Rows& k) const { return extent(q, k).area; }

 private:
  template <class Take>
  void visit(const Rows& q, const Rows& k, Take take) const;

  std::string kind_;
  MaskShape shape_;
  std::vector<Band> bands_;          // sorted by q0
  std::vector<std::int64_t> reach_;  // largest q1 of bands_[0..i]: bounds the search
};

/// Shrinks a band to its visible cells; an empty one has q0 == q1. Bounds that cut nothing become
/// unbounded.
Band tight(Band band);
std::int64_t area(const Band& band);
/// Sorted disjoint union of the columns that the bands touch.
std::vector<Range> columns(std::span<const Band> bands);
std::vector<Range> rows_of(std::span<const Band> bands);

// Makers; positions are those inside a batch item unless stated otherwise.
Mask full_mask(MaskShape s);
/// Key position <= query position + offset; offset 0: top-left, keys - queries: bottom-right.
Mask causal_mask(MaskShape s, bool bottom_right);
/// Causal with at most `window` keys, the token itself counted (OB-008).
Mask window_mask(MaskShape s, std::int64_t window);
/// Documents packed over the rows of the whole batch; tokens see their own document only, causally
/// or whole.
Mask document_mask(MaskShape s, std::span<const std::int64_t> lengths, bool causal);
/// Tokens see their own block of `block` tokens whole, and all blocks before it.
Mask block_causal_mask(MaskShape s, std::int64_t block);
/// The first `prefix` keys are seen by all, the rest causally.
Mask prefix_mask(MaskShape s, std::int64_t prefix);
/// Causal text; rows of a region (global packed [begin, end)) see their whole region as well.
Mask region_mask(MaskShape s, std::span<const Range> regions);
/// AttnSlice of MagiAttention (brief 6.3): type 0 full, 1 causal, 2 inverse causal, 3 both.
struct AttnSlice {
  std::int64_t q0, q1, k0, k1;
  int type;
};
Mask slice_mask(MaskShape s, std::span<const AttnSlice> slices);

}  // namespace tessera::attention

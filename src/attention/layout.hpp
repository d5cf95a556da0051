// SPDX-License-Identifier: Apache-2.0
// Which rows of a packed sequence a rank holds, in which local order. Rows are counted over the
// whole batch: row = batch item * sequence + position. Three fixed layouts (attention brief 3.1):
// contiguous, zigzag (half-chunks i and 2n-1-i), striped (token t on rank t mod n); and balanced,
// which deals pieces of the sequence by the work that the mask gives them (dispatch.hpp).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/range.hpp"

namespace tessera::attention {

enum class Layout : std::uint8_t { contiguous, zigzag, striped, balanced };
std::string_view name_of(Layout layout);

/// `count` local rows that hold the global rows start, start + stride, ...; start < 0: padding.
struct Segment {
  std::int64_t start = 0;
  std::int64_t stride = 1;
  std::int64_t count = 0;
  bool padding() const { return start < 0; }
  bool operator==(const Segment&) const = default;
};

/// Local rows in order.
using Rows = std::vector<Segment>;

std::int64_t count(const Rows& rows);
/// Rows that are no padding.
std::int64_t count_valid(const Rows& rows);
/// The local rows [range) of `rows`.
Rows slice(const Rows& rows, Range range);
/// Several local ranges, one after the other.
Rows slice(const Rows& rows, const std::vector<Range>& ranges);
void append(Rows& to, const Rows& more);
/// Global row of every local row, -1 for padding.
std::vector<std::int64_t> expand(const Rows& rows);

/// Pieces that the balanced layout cuts a batch item into, per chunk.
inline constexpr std::int64_t pieces_per_chunk = 16;

/// Multiple that a sequence is padded to for n chunks: 2n for zigzag, 16n for balanced, else n.
std::int64_t padding_multiple(Layout layout, int n);
std::int64_t padded(std::int64_t sequence, std::int64_t multiple);

/// Rows of chunk i of n. Each batch item is cut by itself, padded to `padded_sequence`, which is a
/// multiple of padding_multiple; a chunk holds batch * padded_sequence / n rows. Not for balanced.
Rows chunk_rows(Layout layout, int n, int i, std::int64_t batch, std::int64_t sequence,
                std::int64_t padded_sequence);

/// The balanced layout: the pieces of all batch items, in order, whose owner is chunk i.
Rows piece_rows(const std::vector<std::int32_t>& owner, int i, std::int64_t batch,
                std::int64_t sequence, std::int64_t padded_sequence);

}  // namespace tessera::attention

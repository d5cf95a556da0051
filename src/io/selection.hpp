// SPDX-License-Identifier: Apache-2.0
// Which part of a dataset a rank reads or writes: slabs of one dimension, the others whole or a
// range. A sequence layout becomes slabs: contiguous one, zigzag two, striped one with a stride.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/range.hpp"
#include "memory/tensor_ref.hpp"

namespace tessera::parallel {
class Communicator;
}

namespace tessera::io {

/// Indices start, start + stride, ..., count of them.
struct Slab {
  std::int64_t start = 0;
  std::int64_t stride = 1;
  std::int64_t count = 0;
  std::int64_t last() const { return start + (count - 1) * stride; }
  bool operator==(const Slab&) const = default;
};

/// The slabs are ascending: each begins after the last index of the one before. In memory they lie
/// one after the other along `dim`. No slab (or only empty ones) = nothing, still a collective
/// call.
struct Selection {
  std::vector<Slab> slabs;
  int dim = 0;
  std::array<std::optional<Range>, 3> within{};  ///< of the other dimensions; none = whole

  /// Number of indices along dim.
  std::int64_t count() const;
  /// Dataset index along dim of the i-th selected one.
  std::int64_t index(std::int64_t i) const;
};

/// Selection of these slabs of dimension 0, the rest whole.
inline Selection rows(std::vector<Slab> slabs) { return {std::move(slabs), 0, {}}; }
/// The whole range [begin, end) of dimension 0.
inline Selection rows(Range r) { return {{{r.begin, 1, r.size()}}, 0, {}}; }

/// Indices [part.begin, part.end) of the selected ones, as slabs; neighbours of one stride joined.
std::vector<Slab> cut(const std::vector<Slab>& slabs, Range part);

/// No call moves more than this many bytes of one rank: counts in MPI are int (field reports of
/// wrong bytes above 2 GiB).
inline constexpr std::int64_t max_call_bytes = std::int64_t{1} << 30;

/// Cuts `count` indices of `bytes_each` into calls of at most `limit` bytes (at least one index);
/// padded with empty calls to the largest number over the ranks. Collective.
std::vector<Range> calls_of(const parallel::Communicator& comm, std::int64_t count,
                            std::int64_t bytes_each, std::int64_t limit);

/// Why `selection` does not fit a dataset of `shape`, empty when it does.
std::string misfit(const Selection& selection, const std::vector<std::int64_t>& shape);

/// Extents of the selected part.
std::vector<std::int64_t> extents(const Selection& selection,
                                  const std::vector<std::int64_t>& shape);

}  // namespace tessera::io

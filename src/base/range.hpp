// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera {

/// Half-open range [begin, end) of indices.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  constexpr std::int64_t size() const { return end - begin; }
  constexpr bool empty() const { return begin >= end; }
  constexpr bool overlaps(Range o) const { return begin < o.end && o.begin < end; }
  constexpr bool covers(Range o) const { return begin <= o.begin && o.end <= end; }
  bool operator==(const Range&) const = default;
};

/// The smallest range that holds both; an empty one does not count.
constexpr Range hull(Range a, Range b) {
  if (a.empty()) return b;
  return b.empty() ? a : Range{std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

}  // namespace tessera

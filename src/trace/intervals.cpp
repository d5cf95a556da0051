// SPDX-License-Identifier: Apache-2.0
// Sweeps over sorted intervals.
#include "trace/intervals.hpp"

#include <algorithm>

namespace tessera::trace {

std::vector<Interval> united(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> result;
  for (const Interval& i : intervals) {
    if (i.begin >= i.end) continue;
    if (!result.empty() && i.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, i.end);
    } else {
      result.push_back(i);
    }
  }
  return result;
}

std::vector<Interval> common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> result;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Interval both{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (both.begin < both.end) result.push_back(both);
    a[i].end < b[j].end ? ++i : ++j;
  }
  return result;
}

double length(const std::vector<Interval>& intervals) {
  double sum = 0;
  for (const Interval& i : intervals) sum += i.end - i.begin;
  return sum;
}

}  // namespace tessera::trace

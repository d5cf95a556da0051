// SPDX-License-Identifier: Apache-2.0
// Sets of time intervals: sums over streams count shared time once.
#pragma once

#include <vector>

namespace tessera::trace {

/// Half-open interval of time, seconds.
struct Interval {
  double begin = 0, end = 0;
};

/// Sorted, disjoint intervals that cover the same time; empty ones vanish.
std::vector<Interval> united(std::vector<Interval> intervals);
/// Time in both; both sorted and disjoint.
std::vector<Interval> common(const std::vector<Interval>& a, const std::vector<Interval>& b);
/// Total length of disjoint intervals, seconds.
double length(const std::vector<Interval>& intervals);

}  // namespace tessera::trace

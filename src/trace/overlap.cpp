// SPDX-License-Identifier: Apache-2.0
// Unions first, differences after: summing durations would count two streams twice.
#include "trace/overlap.hpp"

#include <algorithm>

#include "trace/intervals.hpp"

namespace tessera::trace {

std::vector<Overlap> overlap_of(const Timeline& timeline) {
  std::size_t num_ranks = timeline.ranks.size();
  for (const Event& e : timeline.events) {
    num_ranks = std::max(num_ranks, static_cast<std::size_t>(e.rank) + 1);
  }
  std::vector<std::vector<Interval>> compute(num_ranks), comm(num_ranks);
  for (const Event& e : timeline.events) {
    if (e.category == Category::wait) continue;
    auto& list = e.category == Category::comm ? comm : compute;
    list[e.rank].push_back({e.begin_s, e.end_s});
  }
  std::vector<Overlap> result(num_ranks);
  for (std::size_t r = 0; r < num_ranks; ++r) {
    const auto busy = united(std::move(compute[r])), moving = united(std::move(comm[r]));
    Overlap& o = result[r];
    o.compute_s = length(busy);
    o.comm_s = length(moving);
    o.overlapped_s = length(common(busy, moving));
    o.exposed_s = o.comm_s - o.overlapped_s;
    o.share = o.comm_s > 0 ? o.overlapped_s / o.comm_s : 0;
  }
  return result;
}

}  // namespace tessera::trace

// SPDX-License-Identifier: Apache-2.0
#include "attention/context.hpp"

#include <algorithm>
#include <utility>

namespace tessera::attention {

ChunkMap::ChunkMap(const Problem& p, const Split& s)
    : r_(s.r), tiles_(static_cast<std::size_t>(s.r) * s.r) {
  std::vector<Rows> q, k;
  for (int i = 0; i < r_; ++i) {
    q.push_back(query_chunk(p, s, i));
    k.push_back(key_chunk(p, s, i));
  }
  for (int i = 0; i < r_; ++i)
    for (int j = 0; j < r_; ++j)
      tiles_[static_cast<std::size_t>(i) * r_ + j] = p.mask.extent(q[i], k[j]);
}

std::int64_t ChunkMap::tiles_empty() const {
  return std::count_if(tiles_.begin(), tiles_.end(), [](const Extent& x) { return x.area == 0; });
}

Context::Context(Problem p, Scheme s, int n, Pass which)
    : problem(std::move(p)),
      scheme(s),
      split(make_split(problem, scheme, n)),
      pass(which),
      map(problem, split),
      q_rows(problem.batch * split.q_padded / split.r),
      k_rows(problem.batch * split.k_padded / split.r) {}

Reach reach_of(int size, const std::function<Range(int)>& touched) {
  Reach out;
  for (int d = 1; d < size; ++d) {
    const Range rows = touched(d);
    if (rows.empty()) continue;
    out.rows = hull(out.rows, rows);
    out.last = d;
    out.first = std::min(out.first, d);
  }
  return out;
}

}  // namespace tessera::attention

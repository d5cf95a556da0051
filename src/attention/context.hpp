// SPDX-License-Identifier: Apache-2.0
// What all ranks of a program share while it is made: shapes, what the mask leaves of every chunk
// pair, and from it how far along its ring a chunk has to travel.
#pragma once

#include <functional>
#include <limits>
#include <vector>

#include "attention/lockstep.hpp"
#include "attention/problem.hpp"

namespace tessera::attention {

/// What is visible of every (query chunk, key chunk), r x r.
class ChunkMap {
 public:
  ChunkMap(const Problem& p, const Split& s);
  const Extent& tile(int q, int k) const { return tiles_[static_cast<std::size_t>(q) * r_ + k]; }
  std::int64_t area(int q, int k) const { return tile(q, k).area; }
  int size() const { return r_; }
  std::int64_t tiles_empty() const;

 private:
  int r_;
  std::vector<Extent> tiles_;
};

struct Context {
  Problem problem;
  Scheme scheme;
  Split split;
  Pass pass;
  ChunkMap map;
  std::int64_t q_rows = 0, k_rows = 0;  ///< rows of an outer chunk

  Context(Problem p, Scheme s, int n, Pass pass);
};

/// How a chunk moves in a ring of `size` members: it is needed up to distance `last` from its
/// owner, the first member that adds to its result sits at distance `first` (>= 1), and all but the
/// owner together touch its rows `rows`.
struct Reach {
  static constexpr int never = std::numeric_limits<int>::max();
  int last = 0;
  int first = never;
  Range rows;
};

/// `touched(d)`: the rows of this chunk that the member at distance d from the owner computes with.
Reach reach_of(int size, const std::function<Range(int)>& touched);

}  // namespace tessera::attention

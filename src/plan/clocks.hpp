// SPDX-License-Identifier: Apache-2.0
// Happens-before inside one rank. A step is ordered before another when it is complete before the
// other one's unit may start. What a unit knows at its start is, per queue, a number of complete
// units and which members of the next one are complete: a later `after` edge into the same queue
// always implies all earlier units whole, so partial knowledge exists of one unit per queue only.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/graph.hpp"

namespace tessera::plan {

class Clocks {
 public:
  /// Clocks of one rank; units in a cycle of waits (a deadlock) keep an empty clock and `cyclic`.
  Clocks(const Graph& graph, int rank);

  bool cyclic() const { return cyclic_; }
  /// Is step `a` complete before step `b` starts? Steps of the rank, not global.
  bool ordered(std::int32_t a, std::int32_t b) const;

 private:
  using Members = std::vector<bool>;
  struct Known {
    std::int32_t complete = 0;  ///< units of the queue
    std::int32_t partial = -1;  ///< into partials_: members of unit number `complete`, -1: none
  };
  void visit(std::int32_t unit);
  void join(Known& into, Known from);
  void learn(Known* clock, std::int32_t step);
  Known* clock(std::int32_t unit) { return &known_[(unit - unit_base_) * num_queues_]; }
  const Known* clock(std::int32_t unit) const { return &known_[(unit - unit_base_) * num_queues_]; }

  const Graph& graph_;
  std::int32_t unit_base_, step_base_, num_queues_;
  std::vector<Known> known_;  // [unit, queue]
  std::vector<Members> partials_;
  std::vector<std::int32_t> place_;  // per step: place inside its unit
  bool cyclic_ = false;
};

}  // namespace tessera::plan

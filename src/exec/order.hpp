// SPDX-License-Identifier: Apache-2.0
// What a device run puts on its streams, in which order, with which waits: data, made once from a
// plan, that a test can look at without a device.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "exec/lanes.hpp"
#include "exec/prepared.hpp"

namespace tessera::exec {

/// A unit by its queue and its number there.
struct Launch {
  std::size_t queue = 0, unit = 0;
};

/// The order in which the host puts the units of all queues on streams: that of the plan's steps,
/// but a unit after all it waits for. Transports start transfers in this order, some of them one
/// after the other (Transport::one_at_a_time), so it must be one that all ranks can keep: schemes
/// emit transfers in lockstep, and a test proves it of every program. std::logic_error: a circle.
std::vector<Launch> launch_order(const plan::Plan& plan, const std::vector<QueueSteps>& queues);

/// One unit at its place in that order.
struct Ordered {
  std::size_t queue = 0;
  Unit unit{};
  std::vector<int> waits;  ///< places of units of other queues; both halves of each, both halves
                           ///< of this one
  bool awaited = false;    ///< somebody on another queue waits for it
  LaneStep lane;           ///< compute
  Cut cut;                 ///< where it is split
};

struct OrderRules {
  std::span<const char> skipped;             ///< by step: it does nothing
  std::function<Cut(std::size_t step)> cut;  ///< of other compute steps
  double long_from = 0;                      ///< flops, see lanes_of
  bool in_turn = false;                      ///< transfers of all queues, one after the other
};

/// All units with their waits and lanes.
std::vector<Ordered> order_of(const plan::Plan& plan, const std::vector<QueueSteps>& queues,
                              const OrderRules& rules);

}  // namespace tessera::exec

// SPDX-License-Identifier: Apache-2.0
// Two streams for one compute queue. A long step is run as two halves, one on each, that share
// nothing; so the multiprocessors which the end of one tile leaves idle, and the way to the next
// launch, are filled by the other half. A short step after it is halved too, where that spares the
// lanes a meeting. Where it would be wrong they wait for each other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/registry.hpp"
#include "plan/plan.hpp"

namespace tessera::exec {

using ops::Cut;

struct LaneStep {
  bool split = false;  ///< a half on each lane; a whole step runs on the first
  bool join = false;   ///< before it the first lane waits for what the second holds
  bool fork = false;   ///< before it, but after a join, the second waits for the first
};

/// How the steps of one queue, in its order, use the lanes. `cuts`: as `steps`; steps of
/// `long_from` flops are long.
std::vector<LaneStep> lanes_of(const plan::Plan& plan, std::span<const std::int32_t> steps,
                               std::span<const Cut> cuts, double long_from);

plan::Use half_of(const plan::Use& use, int dimension, int half);
/// The call of one half, on a stream.
ops::Call half_of(const ops::Call& call, const Cut& cut, int half, void* stream);

}  // namespace tessera::exec

// SPDX-License-Identifier: Apache-2.0
// Rates of the operators on one rank with a core of its own, and how fast a rank computes while its
// messages move.
#pragma once

#include <vector>

#include "memory/buffer.hpp"
#include "ops/registry.hpp"
#include "parallel/communicator.hpp"
#include "plan/machine.hpp"

namespace tessera::drivers {

struct ComputeRates {
  std::vector<plan::Rate> rates;  ///< attention.forward and .backward in every dtype
  double memory_b_s = 0;          ///< bytes read and written by tensor.copy
  double step_overhead_s = 0;     ///< of the smallest call there is
};

/// Only as many ranks of a host compute at a time as it has cores; medians over them.
ComputeRates measure_compute(const parallel::Communicator& comm,
                             const parallel::Placement& placement, const ops::Registry& registry,
                             int head_dim, bool quick);

/// Speed of compute while a transfer moves, against compute alone: 1 = transfers are free, 0 =
/// compute stands still. Transfers advance as in the executor, by a look between parts of a tile.
double measure_overlap(parallel::Communicator& comm, const ops::Registry& registry, int head_dim,
                       bool quick);

}  // namespace tessera::drivers

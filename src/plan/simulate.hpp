// SPDX-License-Identifier: Apache-2.0
// Runs a program on a machine model, event by event, with zero buffering: a message moves only when
// both sides have started its unit. The result is a timeline of every step of every rank.
#pragma once

#include <functional>
#include <vector>

#include "plan/machine.hpp"
#include "plan/plan.hpp"

namespace tessera::plan {

struct SimulateOptions {
  /// Duration in seconds of a step of a rank, instead of the model's; a negative value keeps the
  /// model. A message takes its sender's, an all_reduce the longest of its members'. For what-if
  /// questions (no stragglers, perfect balance) and for models in units of one tile.
  std::function<double(int rank, const Step& step)> duration;
};

struct StepTime {
  double posted_s = 0;  ///< comm: when its unit started, that is when it began to wait for its peer
  double begin_s = 0;   ///< compute: as posted; comm: when the bytes began to move
  double end_s = 0;
};

struct RankTime {
  std::vector<StepTime> steps;  ///< as the rank's plan
  double compute_s = 0;         ///< sum over compute steps, what transfers took from them included
  double comm_s = 0;            ///< time with at least one transfer of the rank under way
  double exposed_s = 0;  ///< time before the end of the last compute step in which comm steps are
                         ///< posted and no compute step runs
  double end_s = 0;      ///< of its last step
};

struct SimulateResult {
  double makespan_s = 0;
  std::vector<RankTime> ranks;
};

/// Model. Compute: step overhead + overhead of the (operator, dtype of the first use) rate +
/// flops / rate, or bytes / memory bandwidth when the step has no flops; times
/// ranks on the node / cores where there are fewer cores than ranks.
/// Message: latency + bytes / bandwidth of the tier. Members of one unit move side by side, but the
/// sends of a unit share its way out and the receives its way in: a unit whose peers are all there
/// takes max(sum of its sends, sum of its receives).
/// all_reduce over n ranks: ring, 2(n-1) latencies + 2(n-1)/n bytes / bandwidth of its widest tier.
/// overlap o < 1: while a transfer moves, compute on both its ranks runs at the speed o; several
/// transfers add up what each takes away.
///
/// Precondition: check() found no bad reference. Throws Error(usage) on an operator with flops and
/// no rate, or a machine without the bandwidth that is needed; Error(invalid) on a message of
/// 0 bytes (never free) and on a deadlock.
SimulateResult simulate(const Program& program, const Machine& machine,
                        const SimulateOptions& options = {});

}  // namespace tessera::plan

// SPDX-License-Identifier: Apache-2.0
// Finds the rank that the others wait for. Phase times of ranks that meet in a collective are all
// equal, so only the time that each spent computing tells them apart.
#pragma once

#include <vector>

namespace tessera::trace {

struct StragglerReport {
  int rank = -1;                ///< the one to blame; -1: nobody in particular
  double slowest_share = 0;     ///< share of the steps in which the candidate was the slowest
  std::vector<double> waits_s;  ///< per rank: time spent waiting for the slowest, all steps
  double step_s = 0;            ///< mean time of a step: that of its slowest rank
  double step_without_s = 0;    ///< the same if the candidate did not count
  double ratio = 1;             ///< step_s / step_without_s
};

/// `compute_s` [step][rank]: seconds of compute between two meetings of all ranks. The candidate is
/// the rank whose removal saves most; it is blamed when it is the slowest in more than half of the
/// steps and the saving is at least 5 %. Error(usage) on rows of unequal length.
StragglerReport find_straggler(const std::vector<std::vector<double>>& compute_s);

}  // namespace tessera::trace

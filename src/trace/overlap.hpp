// SPDX-License-Identifier: Apache-2.0
// How much communication hides behind compute, per rank, from a timeline.
#pragma once

#include <vector>

#include "trace/event.hpp"

namespace tessera::trace {

/// Seconds, as unions over the queues of a rank. Waiting is neither compute nor communication.
struct Overlap {
  double compute_s = 0;     ///< Category::compute and copy
  double comm_s = 0;        ///< Category::comm
  double overlapped_s = 0;  ///< both at once
  double exposed_s = 0;     ///< comm_s - overlapped_s
  double share = 0;         ///< overlapped_s / comm_s; 0 without communication
};

/// One entry per rank of the timeline (by Event::rank, 0 to the largest).
std::vector<Overlap> overlap_of(const Timeline& timeline);

}  // namespace tessera::trace

// SPDX-License-Identifier: Apache-2.0
// Small tools of the measurements: a clock, medians, a barrier that leaves the cores to others.
#pragma once

#include <functional>
#include <vector>

#include "parallel/communicator.hpp"

namespace tessera::drivers {

/// Seconds on a steady clock.
double now_s();

/// Median; 0 for an empty list.
double median(std::vector<double> values);

/// Seconds that this process had a core: what shares the core does not count.
double processor_s();

/// Median time of `body` over `repeats` runs after one that does not count.
double median_time(int repeats, const std::function<void()>& body, double (*clock)() = now_s);

/// A barrier whose waiting ranks sleep between looks, so that those still computing on the same
/// cores are not slowed down by them.
void sleeping_barrier(const parallel::Communicator& comm);

}  // namespace tessera::drivers

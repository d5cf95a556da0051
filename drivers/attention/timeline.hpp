// SPDX-License-Identifier: Apache-2.0
// Runs, measured or simulated, as one timeline: events carry the step ids of their plan.
#pragma once

#include "exec/executor.hpp"
#include "parallel/communicator.hpp"
#include "plan/plan.hpp"
#include "plan/simulate.hpp"
#include "trace/clock.hpp"
#include "trace/event.hpp"

namespace tessera::drivers {

/// This job's run by the clock of rank 0, from time 0 on. `clocks` on rank 0 holds
/// the offsets of all ranks (exec/clock.hpp), and the result is complete there, empty elsewhere.
/// Collective.
trace::Timeline measured_timeline(const plan::Program& program, const exec::Measured& run,
                                  const std::vector<trace::ClockOffset>& clocks,
                                  parallel::Communicator& comm);

/// A simulated run in the same form.
trace::Timeline simulated_timeline(const plan::Program& program, const plan::SimulateResult& times);

/// Adds a run after what the timeline holds; its messages get arrows of their own.
void append(trace::Timeline& timeline, const trace::Timeline& run);

}  // namespace tessera::drivers

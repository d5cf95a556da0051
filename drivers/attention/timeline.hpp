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

/// Adds this rank's run after what the timeline holds, by the clock of rank 0. `clocks` on rank 0
/// holds the offsets of all ranks (exec/clock.hpp), and the result is complete there. Collective.
void append_measured(trace::Timeline& timeline, const plan::Program& program,
                     const exec::Measured& run, const std::vector<trace::ClockOffset>& clocks,
                     parallel::Communicator& comm);

/// Adds a simulated run.
void append_simulated(trace::Timeline& timeline, const plan::Program& program,
                      const plan::SimulateResult& times);

}  // namespace tessera::drivers

// SPDX-License-Identifier: Apache-2.0
// Offsets of the ranks' steady clocks, measured by ping-pong with rank 0 (OB-114).
#pragma once

#include <vector>

#include "parallel/communicator.hpp"
#include "trace/clock.hpp"

namespace tessera::exec {

/// Offset of every rank's clock to that of rank 0; empty on the other ranks. Collective.
std::vector<trace::ClockOffset> align_clocks(parallel::Communicator& comm);

}  // namespace tessera::exec

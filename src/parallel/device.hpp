// SPDX-License-Identifier: Apache-2.0
// Which GPU a rank computes on.
#pragma once

#include <string>

#include "parallel/communicator.hpp"

namespace tessera::parallel {

struct Device {
  int number = 0;           ///< of this process, as CUDA counts
  std::string uuid;         ///< the same in all processes
  std::string text;         ///< "NVIDIA H200, compute 9.0, ..."
  int ranks_on_device = 1;  ///< of this rank's device
  int num_devices = 1;      ///< different devices in the job
  bool shared = false;      ///< some device has more than one rank; the same on all ranks
};

/// Gives rank k of a host its visible device k modulo their number, makes it current and looks
/// whether another rank got the same. Error(environment) on all ranks alike: no device or driver
/// (with the hosts that lack one), or two ranks on one device unless `share` (names both ranks,
/// the host, the device and the fix). Collective.
Device choose_device(const Communicator& comm, const Placement& placement, bool share);

}  // namespace tessera::parallel

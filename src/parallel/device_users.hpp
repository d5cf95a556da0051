// SPDX-License-Identifier: Apache-2.0
// Who computes on which GPU, from what all ranks say: no device is asked here, so that every
// arrangement can be tested on any machine.
#pragma once

#include <span>
#include <string>

#include "parallel/device.hpp"

namespace tessera::parallel {

/// One rank's choice; `uuid` is empty where the rank sees no device.
struct DeviceUser {
  std::string host, uuid;
};

/// Error(environment) naming the hosts whose ranks see no device; `why` is what such a rank said.
void require_devices(std::span<const DeviceUser> users, const std::string& why);

/// The counts of `rank`'s device and of the job. A device is a host and a uuid: virtual machines
/// and parts of devices may show the same uuid on different hosts. Error(environment) naming the
/// ranks of the first device that has more than one, unless `share`.
Device count_users(std::span<const DeviceUser> users, int rank, bool share);

}  // namespace tessera::parallel

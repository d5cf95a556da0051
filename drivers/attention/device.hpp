// SPDX-License-Identifier: Apache-2.0
// The GPU of this rank as a deck asks for it, or none.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "config/config.hpp"
#include "exec/executor.hpp"
#include "parallel/device.hpp"

namespace tessera::drivers {

class DeviceSetup {
 public:
  /// Collective. Error(usage) for keys of GPUs when parallel.device is "host"; Error(environment)
  /// when a rank has no device of its own or the transport does not work here.
  DeviceSetup(const config::Config& config, parallel::Communicator& comm,
              const parallel::Placement& placement);

  /// Null: host ranks.
  exec::DeviceRun* run() { return device_ ? &run_ : nullptr; }
  Space space() const { return device_ ? Space::cuda : Space::host; }
  bool shared() const { return device_ && device_->shared; }
  int ranks_on_device() const { return device_ ? device_->ranks_on_device : 1; }
  /// Free bytes of the device for this rank; its ranks share them alike.
  std::int64_t memory_per_rank() const;
  /// "NVIDIA H200, ...; 2 GPUs, one rank each; transport peer; a pass is one graph", or "host".
  std::string text() const;

 private:
  std::optional<parallel::Device> device_;
  std::unique_ptr<parallel::Transport> transport_;
  exec::DeviceRun run_;
};

}  // namespace tessera::drivers

// SPDX-License-Identifier: Apache-2.0
#include "drivers/attention/device.hpp"

#include <fmt/format.h>

#include "memory/stream.hpp"

namespace tessera::drivers {

DeviceSetup::DeviceSetup(const config::Config& config, parallel::Communicator& comm,
                         const parallel::Placement& placement) {
  if (config.text("parallel.device") == "host") {
    for (const char* key : {"parallel.transport", "parallel.share_device", "parallel.nccl_channels",
                            "parallel.throttle", "run.graph"})
      if (config.given(key) && !config.given("parallel.device"))
        throw parallel::AgreedError(
            config.error(key, "says how GPUs are used, but there are none",
                         "set parallel.device = \"cuda\", or leave it out"));
    return;
  }
  const std::string& transport = config.text("parallel.transport");
  if (config.integer("parallel.nccl_channels") > 0 &&
      (transport == "peer" || transport == "staged"))
    throw parallel::AgreedError(config.error("parallel.nccl_channels",
                                             "has no effect with transport " + transport,
                                             "set parallel.transport = \"nccl\", or leave it out"));
  device_ = parallel::choose_device(comm, placement, config.boolean("parallel.share_device"));
  parallel::TransportOptions options;
  options.name = transport;
  options.nccl_channels = static_cast<int>(config.integer("parallel.nccl_channels"));
  options.shared_device = device_->shared;
  transport_ = parallel::make_transport(comm, options);
  if (const auto rate = config.integer("parallel.throttle"); rate > 0)
    transport_ = parallel::make_throttled(std::move(transport_), static_cast<double>(rate));
  run_.transport = transport_.get();
  run_.graph = config.boolean("run.graph");
}

std::int64_t DeviceSetup::memory_per_rank() const {
  return device_ ? memory::device_memory()[0] / device_->ranks_on_device : 0;
}

std::string DeviceSetup::text() const {
  if (!device_) return "host";
  return fmt::format("{}; {} GPU{}, {}; transport {}; {}", device_->text, device_->num_devices,
                     device_->num_devices == 1 ? "" : "s",
                     device_->shared ? "shared by ranks" : "one rank each", transport_->name(),
                     run_.graph ? "a pass is one graph" : "steps launched one by one");
}

}  // namespace tessera::drivers

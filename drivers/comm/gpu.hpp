// SPDX-License-Identifier: Apache-2.0
// The machine model of GPUs: the same figures as on host ranks, taken from device events around
// replayed graphs, which is how plans run. All ranks measure at once; ranks that share a device
// slow each other, as they do in a run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "drivers/comm/fit.hpp"
#include "parallel/communicator.hpp"
#include "parallel/device.hpp"
#include "plan/machine.hpp"

namespace tessera::drivers {

struct GpuOptions {
  std::string transport = "auto";  ///< as parallel::TransportOptions::name
  bool share = false;              ///< ranks may share a device
  int head_dim = 128;
  bool quick = false;
};

/// Measured times of one tier or operator, for the table that is printed.
struct GpuTable {
  std::string name;  ///< "attention.forward bf16", "messages inside a host"
  std::vector<Sample> samples;
  Line line;
};

struct GpuMachine {
  plan::Machine machine;  ///< without a name
  parallel::Device device;
  std::string transport;
  std::vector<GpuTable> tables;
};

/// `step` is told what comes next. Error(environment) as choose_device and make_transport; all
/// ranks get the same machine. Collective.
GpuMachine measure_gpus(parallel::Communicator& comm, const parallel::Placement& here,
                        const GpuOptions& options, const std::function<void(const char*)>& step);

}  // namespace tessera::drivers

// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs for tests: each its own device, or all sharing what there is; the operators of all
// backends; the transports that work here. Include once per program: it has the `main`.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "attention/session.hpp"
#include "kernels/cuda/register.hpp"
#include "kernels/reference/register.hpp"
#include "memory/cuda.hpp"
#include "memory/stream.hpp"
#include "parallel/device.hpp"
#include "parallel/transport.hpp"
#include "validation/mpi/rank_report.hpp"

namespace tessera::test {

class DeviceRig {
 public:
  explicit DeviceRig(parallel::Communicator& comm)
      : comm(comm), device(parallel::choose_device(comm, parallel::find_placement(comm), true)) {
    kernels::register_reference(registry);
    kernels::register_cuda(registry, budget);
  }
  /// "peer" and "staged", and "nccl" where every rank has a device of its own.
  std::vector<std::string> transports() const {
    std::vector<std::string> out{"peer", "staged"};
    if (!device.shared) out.push_back("nccl");
    return out;
  }
  std::unique_ptr<parallel::Transport> transport(const std::string& name) {
    return parallel::make_transport(
        comm, {.name = name, .shared_device = device.shared, .nccl_channels = 0});
  }
  attention::Surroundings around(exec::DeviceRun& run) {
    return {comm, registry, budget, nullptr, &run};
  }

  parallel::Communicator& comm;
  parallel::Device device;
  Budget budget;
  ops::Registry registry;
};

inline DeviceRig* rig_pointer = nullptr;
inline DeviceRig& rig() { return *rig_pointer; }

/// Printed by rank 0.
template <class... T>
void say(fmt::format_string<T...> text, T&&... args) {
  if (rig().comm.rank() == 0) fmt::print("{}\n", fmt::format(text, std::forward<T>(args)...));
}

}  // namespace tessera::test

int main(int argc, char** argv) {
  using namespace tessera;
  ::testing::InitGoogleTest(&argc, argv);
  const parallel::World guard(argc, argv);
  parallel::Communicator world(MPI_COMM_WORLD, "test");
  if (world.all_reduce_min(std::int64_t{memory::device_count()}) == 0) {
    if (world.rank() == 0)
      std::printf("skipped: these tests need a CUDA device (%s)\n",
                  memory::describe_device().c_str());
    return 77;
  }
  test::DeviceRig rig(world);
  test::rig_pointer = &rig;
  test::report_of_rank(world.rank());
  test::say("{} ranks, {} device(s): {}", world.size(), rig.device.num_devices, rig.device.text);
  const int failed = RUN_ALL_TESTS();
  return world.all_reduce_max(std::int64_t{failed}) == 0 ? 0 : 1;
}

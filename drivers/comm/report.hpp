// SPDX-License-Identifier: Apache-2.0
// What tessera-comm says: the conditions of its figures, tables of them, one RESULT line.
#pragma once

#include <string>
#include <vector>

#include "drivers/comm/gpu.hpp"
#include "drivers/comm/links.hpp"
#include "parallel/communicator.hpp"
#include "plan/machine.hpp"

namespace tessera::drivers {

/// The command line of tessera-comm.
struct CommOptions {
  std::string out, name, device = "host", transport = "auto";
  int head_dim = 128;
  double watchdog_s = 300;
  bool quick = false, share_device = false;
};

/// How, where and when: comment lines of the machine file. Collective.
std::vector<std::string> host_notes(const parallel::Communicator& world,
                                    const parallel::Placement& here, const CommOptions& options);
std::vector<std::string> gpu_notes(const parallel::Communicator& world,
                                   const parallel::Placement& here, const CommOptions& options,
                                   const GpuMachine& gpus);

void print_links(const Links& links, const parallel::Placement& here);
void print_tables(const std::vector<GpuTable>& tables);
void print_machine(const plan::Machine& machine);

}  // namespace tessera::drivers

// SPDX-License-Identifier: Apache-2.0
// tessera-attention: exact attention over a sequence split across MPI ranks, forward and backward,
// in every scheme of the deck. Each scheme is planned, checked, counted and simulated first, then
// run, timed and compared with an fp64 reference.
#include <fmt/format.h>

#include "drivers/attention/experiment.hpp"
#include "drivers/common/main.hpp"
#include "io/input.hpp"

int main(int argc, char** argv) {
  // Before MPI starts, so that HDF5 does not close files inside MPI_Finalize.
  tessera::io::prepare();
  return tessera::drivers::guarded_main(argc, argv, [&](tessera::parallel::Communicator& world) {
    return tessera::drivers::run_attention(argc, argv, world);
  });
}

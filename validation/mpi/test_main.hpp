// SPDX-License-Identifier: Apache-2.0
// `main` of a GoogleTest program that runs on several ranks: include it in one file of the program.
// Rank 0 prints the usual report, the others print their failures only; any failure fails the job.
#pragma once

#include <gtest/gtest.h>

#include "parallel/communicator.hpp"
#include "validation/mpi/rank_report.hpp"

namespace tessera::test {

inline parallel::Communicator* world_pointer = nullptr;

/// The ranks of the test program.
inline parallel::Communicator& world() { return *world_pointer; }

}  // namespace tessera::test

int main(int argc, char** argv) {
  using namespace tessera;
  ::testing::InitGoogleTest(&argc, argv);
  const parallel::World guard(argc, argv);
  parallel::Communicator world(MPI_COMM_WORLD, "test");
  test::world_pointer = &world;
  test::report_of_rank(world.rank());
  const int failed = RUN_ALL_TESTS();
  return world.all_reduce_max(std::int64_t{failed}) == 0 ? 0 : 1;
}

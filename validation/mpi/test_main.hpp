// SPDX-License-Identifier: Apache-2.0
// `main` of a GoogleTest program that runs on several ranks: include it in one file of the program.
// Rank 0 prints the usual report, the others print their failures only; any failure fails the job.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>

#include "parallel/communicator.hpp"

namespace tessera::test {

inline parallel::Communicator* world_pointer = nullptr;

/// The ranks of the test program.
inline parallel::Communicator& world() { return *world_pointer; }

class FailurePrinter : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "[rank %d] %s:%d: %s\n", world().rank(), result.file_name(),
                 result.line_number(), result.message());
  }
};

}  // namespace tessera::test

int main(int argc, char** argv) {
  using namespace tessera;
  ::testing::InitGoogleTest(&argc, argv);
  const parallel::World guard(argc, argv);
  parallel::Communicator world(MPI_COMM_WORLD, "test");
  test::world_pointer = &world;
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new test::FailurePrinter);
  }
  const int failed = RUN_ALL_TESTS();
  return world.all_reduce_max(std::int64_t{failed}) == 0 ? 0 : 1;
}

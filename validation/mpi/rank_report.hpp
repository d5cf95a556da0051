// SPDX-License-Identifier: Apache-2.0
// What the ranks of a test program print: rank 0 the usual report, the others their failures only.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>

namespace tessera::test {

class RankFailures : public ::testing::EmptyTestEventListener {
 public:
  explicit RankFailures(int rank) : rank_(rank) {}

 private:
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "[rank %d] %s:%d: %s\n", rank_, result.file_name(), result.line_number(),
                 result.message());
  }
  int rank_;
};

/// Call it before RUN_ALL_TESTS.
inline void report_of_rank(int rank) {
  if (rank == 0) return;
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new RankFailures(rank));
}

}  // namespace tessera::test

// SPDX-License-Identifier: Apache-2.0
// A build without CUDA refuses device and pinned memory by name and takes nothing from the budget.
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "memory/buffer.hpp"
#include "memory/cuda.hpp"

namespace tessera::testing {
namespace {

TEST(gpu_none, device_and_pinned_memory_are_refused_by_name) {
  for (const auto& [space, name] :
       {std::pair{Space::cuda, "device memory"}, {Space::pinned, "pinned memory"}}) {
    Budget budget;
    try {
      const Buffer x(budget, 64, "x", space);
      FAIL() << name << " was allocated";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::environment);
      EXPECT_NE(e.message().find(name), std::string::npos) << e.message();
      EXPECT_NE(e.hint().find("TESSERA_CUDA"), std::string::npos);
    }
    EXPECT_EQ(budget.in_use(), 0);
  }
  EXPECT_EQ(memory::device_count(), 0);
}

}  // namespace
}  // namespace tessera::testing

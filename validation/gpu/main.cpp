// SPDX-License-Identifier: Apache-2.0
// Runs the device tests, or exits with 77 (skipped) where there is no device to run them on.
#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/kokkos/runtime.hpp"
#include "memory/cuda.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::printf("device: %s\n", tessera::memory::describe_device().c_str());
  if (tessera::memory::device_count() == 0) {
    std::printf("skipped: these tests need a CUDA device\n");
    return 77;
  }
  const tessera::kernels::KokkosRuntime kokkos;
  std::printf("Kokkos: %s\n", tessera::kernels::kokkos_version().c_str());
  return RUN_ALL_TESTS();
}

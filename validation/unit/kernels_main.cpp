// SPDX-License-Identifier: Apache-2.0
// Kokkos is initialised around all kernel tests of the process.
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

namespace {

class KokkosEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { Kokkos::initialize(); }
  void TearDown() override { Kokkos::finalize(); }
};

const auto* const environment = ::testing::AddGlobalTestEnvironment(new KokkosEnvironment);

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// Start and end of Kokkos. It does not see the command line: it would answer --help itself.
#include "kernels/kokkos/runtime.hpp"

#include <Kokkos_Core.hpp>

namespace tessera::kernels {

KokkosRuntime::KokkosRuntime() { Kokkos::initialize(); }
KokkosRuntime::~KokkosRuntime() { Kokkos::finalize(); }

std::string kokkos_version() {
  const auto part = [](int divisor) { return std::to_string(KOKKOS_VERSION / divisor % 100); };
  std::string spaces = Kokkos::DefaultExecutionSpace::name();
  const std::string host = Kokkos::DefaultHostExecutionSpace::name();
  if (host != spaces) spaces += ", " + host;
  return part(10000) + "." + part(100) + "." + part(1) + " (execution spaces: " + spaces + ")";
}

}  // namespace tessera::kernels

// SPDX-License-Identifier: Apache-2.0
// Kokkos as a whole without its headers: start and end of it in a process, and what it is. Built
// from runtime.cpp, or from none.cpp where there is no Kokkos.
#pragma once

#include <string>

namespace tessera::kernels {

/// Kokkos is initialised as long as this lives; one at a time in a process, on one thread. Does
/// nothing in a build without Kokkos.
class KokkosRuntime {
 public:
  KokkosRuntime();
  ~KokkosRuntime();
  KokkosRuntime(const KokkosRuntime&) = delete;
  KokkosRuntime& operator=(const KokkosRuntime&) = delete;
};

/// "3.4.1 (execution spaces: Serial)", or that this build has none.
std::string kokkos_version();

}  // namespace tessera::kernels

// SPDX-License-Identifier: Apache-2.0
// A build without Kokkos or without a CBLAS: the backend is not there.
#include "kernels/kokkos/register.hpp"
#include "kernels/kokkos/runtime.hpp"

namespace tessera::kernels {

void register_kokkos(ops::Registry&) {}

KokkosRuntime::KokkosRuntime() = default;
KokkosRuntime::~KokkosRuntime() = default;

std::string kokkos_version() { return "not in this build (it needs Kokkos and a CBLAS)"; }

}  // namespace tessera::kernels

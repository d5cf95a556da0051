// SPDX-License-Identifier: Apache-2.0
// The portable backend: host execution space of Kokkos with matrix products through BLAS, and its
// CUDA space where there is one.
#pragma once

#include "ops/registry.hpp"

namespace tessera::kernels {

/// Adds backend "kokkos", priority 10: all operators, all element types, host memory. Kokkos must
/// be initialised when an operator runs. Same call, bitwise same result. A Kokkos with CUDA in a
/// build with CUDA also adds "kokkos-cuda", priority 3: the same for device memory.
void register_kokkos(ops::Registry& registry);

}  // namespace tessera::kernels

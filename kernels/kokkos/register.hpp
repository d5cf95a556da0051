// SPDX-License-Identifier: Apache-2.0
// The portable backend: host execution space of Kokkos, matrix products through BLAS.
#pragma once

#include "ops/registry.hpp"

namespace tessera::kernels {

/// Adds backend "kokkos", priority 10: all operators, all element types, host memory. Kokkos must
/// be initialised when an operator runs. Same call, bitwise same result.
void register_kokkos(ops::Registry& registry);

}  // namespace tessera::kernels

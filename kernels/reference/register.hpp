// SPDX-License-Identifier: Apache-2.0
// The reference backend: every operator of ops/call.hpp as plain loops, the oracle of all tests.
#pragma once

#include "ops/registry.hpp"

namespace tessera::kernels {

/// Adds backend "reference", priority 0: all operators, all element types, host memory.
void register_reference(ops::Registry& registry);

}  // namespace tessera::kernels

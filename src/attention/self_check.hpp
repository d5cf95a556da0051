// SPDX-License-Identifier: Apache-2.0
// Checks at start-up that the chosen kernels keep the contract that merging relies on.
#pragma once

#include "base/dtype.hpp"
#include "memory/tensor_ref.hpp"
#include "ops/registry.hpp"

namespace tessera::attention {

/// Runs attention.forward in this space on four keys of score 0: LSE must be ln 4, the natural
/// logarithm. Error(environment) naming backend and value otherwise, and saying so when it is base
/// 2; partial results of such a kernel would be merged with wrong weights without any sign (brief
/// 11).
void check_lse(const ops::Registry& registry, DType type, Space space = Space::host);

}  // namespace tessera::attention

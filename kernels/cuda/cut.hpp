// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/registry.hpp"

namespace tessera::kernels::cuda {

/// By which dimension each argument is halved so that a call falls into two by its heads
/// (Implementation::cut): the first of statistics, the second of all else. Empty where heads are
/// odd in number.
ops::Cut cut_by_heads(const ops::Call& call);

}  // namespace tessera::kernels::cuda

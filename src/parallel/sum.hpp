// SPDX-License-Identifier: Apache-2.0
// Sum of the slots that ranks have written for each other.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace tessera::parallel {

/// data[i] = slots[0][i] + slots[1][i] + ... in this order; slots [num, count], f32 or f64, in
/// device memory.
void sum_slots(const void* slots, int num, void* data, std::int64_t count, DType dtype,
               void* stream);

}  // namespace tessera::parallel

// SPDX-License-Identifier: Apache-2.0
// Descriptions of 16-bit tensors [token, head, d] for the tensor copy engine.
#pragma once

#include <cuda.h>

#include "memory/tensor_ref.hpp"

namespace tessera::kernels::cuda {

/// Can the copy engine read it for the kernels that use it: 16-bit elements, unit stride along d,
/// address and strides multiples of 16 bytes.
bool fits_tensor_map(const TensorRef& t);

/// The same for f32, which the copy engine adds to.
bool fits_sum_map(const TensorRef& t);

/// Boxes of `rows` tokens, one head, 128 bytes (64 columns, or 32 of f32) with the 128-byte
/// swizzle; elements outside the tensor read as 0. Error(environment) if the driver refuses.
CUtensorMap tensor_map(const TensorRef& t, int rows);

}  // namespace tessera::kernels::cuda

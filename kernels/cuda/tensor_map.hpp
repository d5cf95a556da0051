// SPDX-License-Identifier: Apache-2.0
// Descriptions of bf16 tensors [token, head, d] for the tensor copy engine.
#pragma once

#include <cuda.h>

#include "memory/tensor_ref.hpp"

namespace tessera::kernels::cuda {

/// Can the copy engine read it: bf16, unit stride along d, address and strides multiples of 16
/// bytes.
bool fits_tensor_map(const TensorRef& t);

/// Boxes of `rows` tokens, one head, 64 columns with the 128-byte swizzle; elements outside the
/// tensor read as 0. Error(environment) if the driver refuses.
CUtensorMap tensor_map(const TensorRef& t, int rows);

}  // namespace tessera::kernels::cuda

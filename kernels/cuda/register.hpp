// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: every operator of ops/call.hpp on device tensors, put on Call::stream.
#pragma once

#include "memory/buffer.hpp"
#include "ops/registry.hpp"

namespace tessera::kernels {

/// Adds backend "cuda", priority 20: all operators; attention in bf16 and f16 with tensor cores
/// (compute 9.0), head sizes 64, 96, 128, 256 and 192/128, scale > 0, tensors aligned to 16 bytes;
/// gradients of scores are operands of products, so those above 65,504 are infinite in f16. And
/// "cuda-plain", priority 5: attention of any element type, head sizes up to 512, slow.
/// And "cudnn" where there is cuDNN, for bf16 and f16 (cudnn.hpp).
/// Mask tables on the device are taken from the budget, which must outlive the registry.
void register_cuda(ops::Registry& registry, Budget& budget);

}  // namespace tessera::kernels

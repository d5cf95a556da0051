// SPDX-License-Identifier: Apache-2.0
// Attention calls of the registry on the device: what is supported, preparation, launches.
#pragma once

#include <memory>

#include "kernels/cuda/mask_cache.hpp"
#include "ops/registry.hpp"

namespace tessera::kernels::cuda {

/// Every argument lies in device memory.
bool on_device(const ops::Call& call);
View view(const TensorRef& t);

/// Adds attention.forward and attention.backward; the cache is shared by all of them.
void add_attention(ops::Registry& registry, std::shared_ptr<MaskCache> masks);

}  // namespace tessera::kernels::cuda

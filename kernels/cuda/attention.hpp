// SPDX-License-Identifier: Apache-2.0
// Attention calls of the registry on the device: what is supported, preparation, launches.
#pragma once

#include <memory>
#include <optional>

#include "kernels/cuda/mask_cache.hpp"
#include "ops/registry.hpp"

namespace tessera::kernels::cuda {

/// Every argument lies in device memory.
bool on_device(const ops::Call& call);
View view(const TensorRef& t);

/// A call without the rows and keys of its tile that are outside the one band of its mask.
struct Box {
  std::vector<TensorRef> args;  ///< those of the call, in its order: views of the same memory
  ops::Band band;               ///< moved along, q0 = k0 = 0; its bounds as they were given
};
/// The box of a well-formed call of attention.forward or attention.backward; none when the mask is
/// not one band, or when that is empty or leaves the tile.
std::optional<Box> box_of(const ops::Call& call);

/// Adds attention.forward and attention.backward; the cache is shared by all of them.
void add_attention(ops::Registry& registry, std::shared_ptr<MaskCache> masks);

}  // namespace tessera::kernels::cuda

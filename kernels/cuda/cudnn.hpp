// SPDX-License-Identifier: Apache-2.0
// Attention through cuDNN's graphs, for the tiles that it knows: full, causal, sliding window.
#pragma once

#include <string>

#include "memory/buffer.hpp"
#include "ops/registry.hpp"

namespace tessera::kernels::cuda {

/// "cuDNN 9.19.0", or why there is none: not built in, or the library is not found at run time.
std::string describe_cudnn();

/// Adds backend "cudnn" to attention.forward (priority 15: no faster than our own kernel on H200,
/// perf/results, and less exact) and attention.backward (priority 30 for tiles of 2^24 visible
/// pairs or more, where it is faster, 15 for smaller ones); nothing where there is no cuDNN. bf16
/// and f16; the mask is one band, of which the tile is cut down to the box; in it the band is full,
/// causal or a causal window, the last two in a square. Partial outputs and gradients leave cuDNN
/// in the storage type and are added to the f32 state: a gradient of one tile beyond 65504 is
/// infinite in f16. Plans, scratch memory and workspace are kept for each shape of box (a zigzag
/// ring under a causal mask has three on any number of ranks), so calls of one shape must be put on
/// one stream. Gradients may differ in the last bits from run to run: deny "cudnn" where they may
/// not.
void add_cudnn(ops::Registry& registry, Budget& budget);

}  // namespace tessera::kernels::cuda

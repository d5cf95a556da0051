// SPDX-License-Identifier: Apache-2.0
// The portable operators on device memory, where Kokkos and this build have CUDA.
#pragma once

#include "ops/registry.hpp"

namespace tessera::kernels::portable {

/// Adds `run` as backend "kokkos-cuda", priority 3: below all others of a device, so that it is
/// used when pinned or where they refuse. Work is put on the call's stream; nothing waits.
void add_on_device(ops::Registry& registry, const char* op, void (*run)(const ops::Call&));

void attention_forward_on_device(const ops::Call& call);
void attention_backward_on_device(const ops::Call& call);

}  // namespace tessera::kernels::portable

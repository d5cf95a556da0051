// SPDX-License-Identifier: Apache-2.0
// CUDA error codes of this room as Error(environment).
#pragma once

#include <cuda_runtime_api.h>

namespace tessera::memory {

/// Throws on anything but success: "cudaMalloc failed: out of memory".
void check(cudaError_t code, const char* what);

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace tessera::memory

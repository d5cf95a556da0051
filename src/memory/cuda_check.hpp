// SPDX-License-Identifier: Apache-2.0
// CUDA error codes as Error(environment), and functions of the driver.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/error.hpp"

namespace tessera::memory {

/// Throws on anything but success: "cudaMalloc failed: out of memory".
void check(cudaError_t code, const char* what);

/// A function of the driver, asked of the runtime: nothing links against the driver, so that
/// programs start on machines without one.
template <class F>
F driver_function(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found), name);
  if (found != cudaDriverEntryPointSuccess || !entry) {
    throw Error(Exit::environment, std::string("this driver has no ") + name,
                "use a driver for CUDA 12 or newer");
  }
  return reinterpret_cast<F>(entry);
}

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace tessera::memory

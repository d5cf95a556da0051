// SPDX-License-Identifier: Apache-2.0
// CUDA error codes become the one exception type.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "base/error.hpp"

namespace tessera::kernels::cuda {

inline void check(cudaError_t code, std::string_view what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // so that the next launch does not report this one
  throw Error(Exit::environment,
              std::string(what) + " failed on the device: " + cudaGetErrorString(code));
}

}  // namespace tessera::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
// Versions of the CUDA runtime and of the driver.
#include "kernels/cuda/version.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

namespace tessera::kernels::cuda {
namespace {

std::string dotted(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

std::string describe_cuda() {
  int driver = 0, devices = 0;
  cudaDriverGetVersion(&driver);  // 0 without a driver
  if (driver == 0) return fmt::format("{} (no driver)", dotted(CUDART_VERSION));
  std::string text = "driver: CUDA " + dotted(driver);
  if (const cudaError_t code = cudaGetDeviceCount(&devices); code != cudaSuccess) {
    text += fmt::format("; {}", cudaGetErrorString(code));
    cudaGetLastError();
  }
  return fmt::format("{} ({})", dotted(CUDART_VERSION), text);
}

}  // namespace tessera::kernels::cuda

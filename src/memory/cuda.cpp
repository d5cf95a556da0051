// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda.hpp"

#include <fmt/format.h>

#include <exception>

#include "base/error.hpp"
#include "base/units.hpp"
#include "memory/cuda_check.hpp"

namespace tessera::memory {

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not report this one
  throw Error(Exit::environment, fmt::format("{} failed: {}", what, cudaGetErrorString(code)),
              code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver
                  ? "run on a machine with an NVIDIA GPU and its driver, or choose host memory"
                  : "");
}

std::int64_t footprint(Space space, std::int64_t bytes) noexcept {
  constexpr std::int64_t page = std::int64_t{2} << 20;
  return space == Space::cuda ? (bytes + page - 1) / page * page : bytes;
}

void* allocate(Space space, std::int64_t bytes) {
  void* data = nullptr;
  const auto size = static_cast<std::size_t>(footprint(space, bytes));
  const bool pinned = space == Space::pinned;
  const cudaError_t code = pinned ? cudaMallocHost(&data, size) : cudaMalloc(&data, size);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(code, pinned ? "cudaMallocHost" : "cudaMalloc");
  clear(data, footprint(space, bytes));
  return data;
}

void clear(void* data, std::int64_t bytes) {
  check(cudaMemset(data, 0, static_cast<std::size_t>(bytes)), "cudaMemset");
  check(cudaStreamSynchronize(nullptr), "cudaMemset");
}

bool device_is_idle() noexcept {
  if (std::uncaught_exceptions() > 0) return false;
  const bool idle = cudaDeviceSynchronize() == cudaSuccess;
  if (!idle) cudaGetLastError();
  return idle;
}

void release(Space space, void* data) noexcept {
  // Freeing waits for the device, see device_is_idle(); the process ends then, and its memory with
  // it.
  if (!data || std::uncaught_exceptions() > 0) return;
  if (space == Space::pinned) {
    cudaFreeHost(data);
  } else {
    cudaFree(data);
  }
}

void copy(void* to, const void* from, std::int64_t bytes, void* stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault,
                        stream_of(stream)),
        "cudaMemcpyAsync");
}

void synchronize(void* stream) {
  check(cudaStreamSynchronize(stream_of(stream)), "the device's work");
}

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

std::string describe_device() {
  if (device_count() == 0) return "no CUDA device";
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  cudaDeviceProp prop{};
  check(cudaGetDeviceProperties(&prop, device), "cudaGetDeviceProperties");
  return fmt::format("{}, compute {}.{}, {} multiprocessors, {}", prop.name, prop.major, prop.minor,
                     prop.multiProcessorCount,
                     units::format_bytes(static_cast<double>(prop.totalGlobalMem)));
}

}  // namespace tessera::memory

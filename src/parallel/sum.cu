// SPDX-License-Identifier: Apache-2.0
#include "parallel/sum.hpp"

#include <string>

#include "base/error.hpp"

namespace tessera::parallel {
namespace {

constexpr int threads = 128;

template <class T>
__global__ void sum_kernel(const T* slots, int num, T* data, std::int64_t count) {
  const std::int64_t i = blockIdx.x * std::int64_t{threads} + threadIdx.x;
  if (i >= count) return;
  T sum = 0;
  for (int s = 0; s < num; ++s) sum += slots[s * count + i];
  data[i] = sum;
}

template <class T>
void launch(const void* slots, int num, void* data, std::int64_t count, void* stream) {
  const auto blocks = static_cast<unsigned>((count + threads - 1) / threads);
  sum_kernel<T><<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const T*>(slots), num, static_cast<T*>(data), count);
}

}  // namespace

void sum_slots(const void* slots, int num, void* data, std::int64_t count, DType dtype,
               void* stream) {
  if (count == 0) return;
  if (dtype == DType::f64)
    launch<double>(slots, num, data, count, stream);
  else
    launch<float>(slots, num, data, count, stream);
  const cudaError_t code = cudaGetLastError();
  if (code != cudaSuccess)
    throw Error(Exit::environment, std::string("sum of slots: ") + cudaGetErrorString(code));
}

}  // namespace tessera::parallel

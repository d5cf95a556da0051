// SPDX-License-Identifier: Apache-2.0
#include "spin.hpp"

namespace tessera::test {
namespace {

__global__ void spin_kernel(std::int64_t ns) {
  std::int64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

}  // namespace

void spin(std::int64_t ns, void* stream) {
  spin_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(ns);
}

}  // namespace tessera::test

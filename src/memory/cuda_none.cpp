// SPDX-License-Identifier: Apache-2.0
// A build without CUDA: device and pinned memory are refused by name.
#include "base/error.hpp"
#include "memory/cuda.hpp"

namespace tessera::memory {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Exit::environment, what + ": this build has no CUDA",
              "configure with -DTESSERA_CUDA=ON, or choose host memory");
}

}  // namespace

void* allocate(Space space, std::int64_t) {
  refuse(space == Space::pinned ? "pinned memory" : "device memory");
}
std::int64_t footprint(Space, std::int64_t bytes) noexcept { return bytes; }
void release(Space, void*) noexcept {}
void clear(void*, std::int64_t) { refuse("device memory"); }
bool device_is_idle() noexcept { return true; }
void copy(void*, const void*, std::int64_t, void*) { refuse("a device copy"); }
void synchronize(void*) { refuse("a device queue"); }
int device_count() noexcept { return 0; }
std::string describe_device() { return "no CUDA in this build"; }

}  // namespace tessera::memory

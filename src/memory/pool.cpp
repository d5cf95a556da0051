// SPDX-License-Identifier: Apache-2.0
#include "memory/pool.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "memory/cuda.hpp"

namespace tessera::memory {

void Free::operator()(void* data) const noexcept {
  space == Space::host ? std::free(data) : release(space, data);
}

Block Pool::take(std::int64_t bytes) {
  const auto at =
      std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& k) { return k.bytes == bytes; });
  if (at == kept_.rend()) return {};
  Block out = std::move(at->block);
  kept_.erase(std::next(at).base());
  bytes_ -= bytes;
  return out;
}

void Pool::keep(Block block, std::int64_t bytes) {
  kept_.push_back({std::move(block), bytes});
  bytes_ += bytes;
}

void Pool::shrink(std::int64_t bytes) {
  while (bytes_ > bytes) {
    bytes_ -= kept_.front().bytes;
    kept_.pop_front();
  }
}

}  // namespace tessera::memory

// SPDX-License-Identifier: Apache-2.0
// Memory that was given back and waits for the next request of its size: to allocate and free
// device memory waits for all work of the device and maps pages anew, and plans come one after the
// other with buffers of the same few sizes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "memory/tensor_ref.hpp"

namespace tessera::memory {

struct Free {
  Space space = Space::host;
  void operator()(void* data) const noexcept;
};
using Block = std::unique_ptr<void, Free>;

class Pool {
 public:
  /// A block of just this size that was kept, the latest one; null when there is none.
  Block take(std::int64_t bytes);
  /// No work of the device may use it any more.
  void keep(Block block, std::int64_t bytes);
  /// Frees the oldest until at most so many bytes are kept.
  void shrink(std::int64_t bytes);
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Kept {
    Block block;
    std::int64_t bytes;
  };
  std::deque<Kept> kept_;  // oldest first
  std::int64_t bytes_ = 0;
};

}  // namespace tessera::memory

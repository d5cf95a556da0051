// SPDX-License-Identifier: Apache-2.0
// A place in a stream where the device hands over to the host and waits for it: two words of pinned
// memory, written and awaited by the stream itself, so that it works inside a captured graph too.
#pragma once

#include <cstdint>

#include "memory/stream.hpp"

namespace tessera::parallel {

class Gate {
 public:
  static constexpr int words = 2;
  /// `pinned`: two words of zero-filled pinned memory that outlive the gate.
  explicit Gate(std::uint32_t* pinned) : reached_(pinned), open_(pinned + 1) {}

  /// Puts the gate on a stream: what follows runs after the host has called release().
  void enqueue(void* stream) const {
    memory::write_word(stream, reached_, 1);
    memory::wait_word(stream, open_, 1);
    memory::write_word(stream, open_, 0);
  }
  /// True once per passage, as soon as the stream has come to the gate.
  bool reached() const {
    if (__atomic_load_n(reached_, __ATOMIC_ACQUIRE) == 0) return false;
    __atomic_store_n(reached_, 0, __ATOMIC_RELAXED);
    return true;
  }
  void release() const { __atomic_store_n(open_, 1, __ATOMIC_RELEASE); }

 private:
  std::uint32_t *reached_, *open_;
};

}  // namespace tessera::parallel

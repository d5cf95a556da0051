// SPDX-License-Identifier: Apache-2.0
// Working memory of a kernel: one block per thread that grows and is used again, since fresh pages
// for every tile cost several per cent of a 512 x 512 tile. Not counted in the Budget of buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace tessera::kernels::portable {

template <class A>
class Scratch {
 public:
  /// Room for `count` elements of A plus the padding of up to 16 arrays.
  explicit Scratch(std::int64_t count)
      : next_(reserve(static_cast<std::size_t>(count + 16 * 64))) {}

  /// `count` elements, aligned to 64 bytes, uninitialised; valid until the next Scratch.
  A* take(std::int64_t count) {
    A* here = next_;
    const std::int64_t line = 64 / sizeof(A);
    next_ += (count + line - 1) / line * line;
    return here;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  static A* reserve(std::size_t count) {
    static thread_local std::unique_ptr<std::byte[], Free> block;
    static thread_local std::size_t capacity = 0;
    const std::size_t bytes = count * sizeof(A);
    if (bytes > capacity) {
      block.reset();
      block.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
      capacity = bytes;
    }
    return reinterpret_cast<A*>(block.get());
  }

  A* next_;
};

}  // namespace tessera::kernels::portable

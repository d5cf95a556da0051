// SPDX-License-Identifier: Apache-2.0
// Owning memory and the budget it is taken from. Every large allocation of a run goes through one
// Budget, so that the high-water mark in the report is a count and not an estimate. Device and
// pinned memory that is given back is kept for the next buffer of its size.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "memory/pool.hpp"
#include "memory/tensor_ref.hpp"

namespace tessera {

/// Bytes in use, the most that were in use at one time, and a limit (0 = none). What is in use and
/// what is kept for later are together never more than the limit, nor, in each space, than the most
/// that was ever in use there.
class Budget {
 public:
  explicit Budget(std::int64_t limit_bytes = 0) : limit_(limit_bytes) {}
  std::int64_t in_use() const;
  std::int64_t kept() const;
  /// Frees what is kept, for allocations that do not come from here (those of NCCL, of graphs).
  void free_kept();
  std::int64_t peak() const { return peak_; }
  std::int64_t limit() const { return limit_; }
  void reset_peak() { peak_ = in_use(); }

 private:
  friend class Buffer;
  /// Zeroed memory. Error(environment) naming label, size, use and limit if the limit would be
  /// passed, or when there is no memory left.
  memory::Block take(Space space, std::int64_t bytes, const std::string& label);
  void give_back(memory::Block block, std::int64_t bytes);
  void check(std::int64_t bytes, const std::string& label) const;

  struct Held {
    std::int64_t in_use = 0, most = 0;
    memory::Pool pool;
  };
  Held& held(Space space) { return held_[static_cast<std::size_t>(space)]; }

  std::int64_t limit_ = 0, peak_ = 0;
  std::array<Held, 3> held_;  // by space; host memory is not kept
  bool idle_ = true;          // no work of the device uses what is kept
};

/// Zero-filled memory, move-only: host memory, 64-byte aligned, or device or pinned memory. The
/// budget must outlive it. Error(environment) naming the label when there is none.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Budget& budget, std::int64_t bytes, const std::string& label, Space space = Space::host);
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;
  ~Buffer();

  void* data() const { return data_.get(); }
  std::int64_t bytes() const { return bytes_; }
  Space space() const { return data_.get_deleter().space; }

 private:
  void give_back();
  memory::Block data_;
  std::int64_t bytes_ = 0;
  Budget* budget_ = nullptr;
};

/// A buffer with the dense tensor that lives in it.
struct Tensor {
  Buffer buffer;
  TensorRef ref;
};
Tensor make_tensor(Budget& budget, DType dtype, std::array<std::int64_t, 3> shape,
                   const std::string& label, Space space = Space::host);

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "memory/buffer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"
#include "memory/cuda.hpp"

namespace tessera {
namespace {

constexpr std::int64_t alignment = 64;

[[noreturn]] void too_large(std::int64_t bytes, const std::string& label) {
  throw Error(Exit::environment,
              fmt::format("no memory for '{}': {} could not be allocated", label,
                          units::format_bytes(static_cast<double>(bytes))),
              "use more ranks, a shorter sequence or a smaller element type");
}

void* allocate_host(std::int64_t bytes) {
  const auto rounded = static_cast<std::size_t>((bytes + alignment - 1) / alignment * alignment);
  void* data = std::aligned_alloc(alignment, rounded);
  if (data) std::memset(data, 0, rounded);
  return data;
}

}  // namespace

void Budget::take(std::int64_t bytes, const std::string& label) {
  if (bytes < 0) throw std::logic_error("negative size of '" + label + "'");
  std::int64_t after = 0;
  if (__builtin_add_overflow(in_use_, bytes, &after)) too_large(bytes, label);
  if (limit_ > 0 && after > limit_) {
    throw Error(Exit::environment,
                fmt::format("memory budget passed by '{}': it needs {}, {} of {} are in use", label,
                            units::format_bytes(static_cast<double>(bytes)),
                            units::format_bytes(static_cast<double>(in_use_)),
                            units::format_bytes(static_cast<double>(limit_))),
                "use more ranks, a shorter sequence, or raise the memory limit");
  }
  in_use_ = after;
  peak_ = std::max(peak_, in_use_);
}

void Budget::give(std::int64_t bytes) { in_use_ -= bytes; }

void Buffer::Free::operator()(void* p) const {
  space == Space::host ? std::free(p) : memory::release(space, p);
}

Buffer::Buffer(Budget& budget, std::int64_t bytes, const std::string& label, Space space)
    : data_(nullptr, Free{space}), bytes_(bytes) {
  budget.take(memory::footprint(space, bytes), label);
  try {
    if (bytes > 0) {
      data_.reset(space == Space::host ? allocate_host(bytes) : memory::allocate(space, bytes));
      if (!data_) too_large(bytes, label);
    }
  } catch (...) {
    budget.give(memory::footprint(space, bytes));
    throw;
  }
  budget_ = &budget;
}

Buffer::Buffer(Buffer&& o) noexcept
    : data_(std::move(o.data_)),
      bytes_(std::exchange(o.bytes_, 0)),
      budget_(std::exchange(o.budget_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& o) noexcept {
  if (this != &o) {
    give_back();
    data_ = std::move(o.data_);
    bytes_ = std::exchange(o.bytes_, 0);
    budget_ = std::exchange(o.budget_, nullptr);
  }
  return *this;
}

Buffer::~Buffer() { give_back(); }

void Buffer::give_back() {
  if (budget_) budget_->give(memory::footprint(space(), bytes_));
}

Tensor make_tensor(Budget& budget, DType dtype, std::array<std::int64_t, 3> shape,
                   const std::string& label, Space space) {
  std::int64_t bytes = size_of(dtype);
  for (const std::int64_t extent : shape) {
    if (extent < 0) throw std::logic_error("negative extent of '" + label + "'");
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      throw Error(Exit::environment,
                  fmt::format("size of '{}' overflows: [{}, {}, {}] elements of {}", label,
                              shape[0], shape[1], shape[2], name_of(dtype)));
    }
  }
  Tensor t;
  t.buffer = Buffer(budget, bytes, label, space);
  t.ref = dense(t.buffer.data(), dtype, shape, space);
  return t;
}

}  // namespace tessera

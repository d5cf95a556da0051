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

memory::Block allocate(Space space, std::int64_t bytes) {
  return memory::Block(space == Space::host ? allocate_host(bytes) : memory::allocate(space, bytes),
                       memory::Free{space});
}

}  // namespace

void Budget::check(std::int64_t bytes, const std::string& label) const {
  const std::int64_t before = in_use();
  std::int64_t after = 0;
  if (__builtin_add_overflow(before, bytes, &after)) too_large(bytes, label);
  if (limit_ == 0 || after <= limit_) return;
  throw Error(Exit::environment,
              fmt::format("memory budget passed by '{}': it needs {}, {} of {} are in use", label,
                          units::format_bytes(static_cast<double>(bytes)),
                          units::format_bytes(static_cast<double>(before)),
                          units::format_bytes(static_cast<double>(limit_))),
              "use more ranks, a shorter sequence, or raise the memory limit");
}

std::int64_t Budget::in_use() const {
  std::int64_t bytes = 0;
  for (const Held& h : held_) bytes += h.in_use;
  return bytes;
}

std::int64_t Budget::kept() const {
  std::int64_t bytes = 0;
  for (const Held& h : held_) bytes += h.pool.bytes();
  return bytes;
}

void Budget::free_kept() {
  for (Held& h : held_) h.pool.shrink(0);
}

memory::Block Budget::take(Space space, std::int64_t bytes, const std::string& label) {
  if (bytes < 0) throw std::logic_error("negative size of '" + label + "'");
  const std::int64_t size = memory::footprint(space, bytes);
  check(size, label);
  if (!idle_) idle_ = memory::device_is_idle();
  Held& here = held(space);
  memory::Block block = here.pool.take(size);
  here.pool.shrink(std::max<std::int64_t>(0, here.most - here.in_use - size));
  if (limit_ > 0 && kept() > limit_ - in_use() - size) free_kept();
  if (block) {
    memory::clear(block.get(), size);
  } else if (bytes > 0) {
    block = allocate(space, bytes);
    if (!block && kept() > 0) {
      free_kept();
      block = allocate(space, bytes);
    }
    if (!block) too_large(bytes, label);
  }
  here.in_use += size;
  here.most = std::max(here.most, here.in_use);
  peak_ = std::max(peak_, in_use());
  return block;
}

/// Memory that is given back while an exception is under way is kept too: the device cannot be
/// waited for then, but will be before the memory is used again, if the exception is caught.
void Budget::give_back(memory::Block block, std::int64_t bytes) {
  const Space space = block.get_deleter().space;
  const std::int64_t size = memory::footprint(space, bytes);
  held(space).in_use -= size;
  if (!block || space == Space::host) return;
  idle_ = memory::device_is_idle();
  held(space).pool.keep(std::move(block), size);
}

Buffer::Buffer(Budget& budget, std::int64_t bytes, const std::string& label, Space space)
    : data_(budget.take(space, bytes, label)), bytes_(bytes), budget_(&budget) {
  data_.get_deleter().space = space;
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
  if (budget_) budget_->give_back(std::move(data_), bytes_);
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

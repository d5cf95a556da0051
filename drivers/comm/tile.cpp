// SPDX-License-Identifier: Apache-2.0
#include "drivers/comm/tile.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "memory/cuda.hpp"
#include "ops/visit.hpp"

namespace tessera::drivers {

namespace {

void fill_host(const TensorRef& x) {
  std::uint32_t state = 12345;
  for (std::int64_t i = 0; i < x.count(); ++i) {
    state = state * 1664525u + 1013904223u;
    ops::visit_dtype(x.dtype,
                     [&]<class T>(T) { x.as<T>()[i] = element_cast<T>(state / 2147483648.0 - 1); });
  }
}

}  // namespace

void fill(const TensorRef& x) {
  if (x.space != Space::cuda) return fill_host(x);
  Budget budget;
  const Tensor host = make_tensor(budget, x.dtype, x.shape, "numbers for a device");
  fill_host(host.ref);
  memory::copy(x.data, host.ref.data, x.count() * size_of(x.dtype));
  memory::synchronize();
}

Tile::Tile(bool forward, DType dtype, std::int64_t tokens, int heads, int head_dim, Space space) {
  const DType sum = accumulate_type(dtype);
  const std::int64_t kv_heads = std::max(heads / 2, 1);
  const auto add = [&](DType t, std::array<std::int64_t, 3> shape) {
    tensors_.push_back(make_tensor(budget_, t, shape, "tile", space));
    fill(tensors_.back().ref);
    call_.args.push_back(tensors_.back().ref);
  };
  add(dtype, {tokens, heads, head_dim});     // q
  add(dtype, {tokens, kv_heads, head_dim});  // k
  add(dtype, {tokens, kv_heads, head_dim});  // v
  if (forward) {
    add(sum, {tokens, heads, head_dim});  // o
    add(sum, {heads, tokens, 1});         // lse
  } else {
    add(dtype, {tokens, heads, head_dim});   // do
    add(sum, {heads, tokens, 1});            // lse
    add(sum, {heads, tokens, 1});            // delta
    add(sum, {tokens, heads, head_dim});     // dq
    add(sum, {tokens, kv_heads, head_dim});  // dk
    add(sum, {tokens, kv_heads, head_dim});  // dv
  }
  mask_ = {0, tokens, 0, tokens};
  call_.name = forward ? "attention.forward" : "attention.backward";
  call_.attributes.mask = {&mask_, 1};
  call_.attributes.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  const double cells = static_cast<double>(tokens) * static_cast<double>(tokens) * heads;
  flops_ = cells * head_dim * (forward ? 4 : 10);
}

void Tile::run(const ops::Registry& registry, const std::function<void()>& progress) {
  call_.progress = progress;
  registry.run(call_);
}

std::string Tile::backend(const ops::Registry& registry) const {
  return registry.choose(call_).backend;
}

void Tile::prepare(const ops::Registry& registry, void* stream) {
  call_.stream = stream;
  registry.prepare(call_);
}

void Tile::run_on(const ops::Registry& registry, void* stream) {
  call_.stream = stream;
  registry.run(call_);
}

}  // namespace tessera::drivers

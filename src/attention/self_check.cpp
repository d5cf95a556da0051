// SPDX-License-Identifier: Apache-2.0
#include "attention/self_check.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <numbers>

#include "base/error.hpp"
#include "memory/buffer.hpp"
#include "memory/cuda.hpp"

namespace tessera::attention {

void check_lse(const ops::Registry& registry, DType type, Space space) {
  constexpr std::int64_t keys = 4, dim = 64;
  const DType sums = accumulate_type(type);
  Budget budget;
  Tensor q = make_tensor(budget, type, {1, 1, dim}, "self check", space);
  Tensor k = make_tensor(budget, type, {keys, 1, dim}, "self check", space);
  Tensor v = make_tensor(budget, type, {keys, 1, dim}, "self check", space);
  Tensor o = make_tensor(budget, sums, {1, 1, dim}, "self check", space);
  Tensor lse = make_tensor(budget, sums, {1, 1, 1}, "self check", space);
  registry.run({"attention.reset", {o.ref, lse.ref}, {}, {}});
  const ops::Band all{0, 1, 0, keys};
  const ops::Call call{
      "attention.forward", {q.ref, k.ref, v.ref, o.ref, lse.ref}, {{&all, 1}, 1, 0}, {}};
  const ops::Implementation& chosen = registry.choose(call);
  chosen.run(call);
  double got64 = 0;
  float got32 = 0;
  const bool wide = sums == DType::f64;
  void* to = wide ? static_cast<void*>(&got64) : &got32;
  if (space == Space::host) {
    std::memcpy(to, lse.ref.data, static_cast<std::size_t>(size_of(sums)));
  } else {
    memory::copy(to, lse.ref.data, size_of(sums));
    memory::synchronize();
  }
  const double got = wide ? got64 : static_cast<double>(got32);
  const double want = std::log(static_cast<double>(keys));
  if (std::abs(got - want) < 1e-5) return;
  const bool base2 = std::abs(got * std::numbers::ln2 - want) < 1e-5;
  throw Error(
      Exit::environment,
      fmt::format(
          "backend '{}' returns a log-sum-exp of {} for {} equal scores of 0, expected ln {} "
          "= {}{}",
          chosen.backend, got, keys, keys, want, base2 ? ": it is in base 2" : ""),
      "convert it in the kernel (times ln 2), or pin another backend: ops.pin = "
      "[\"attention.forward=reference\"]");
}

}  // namespace tessera::attention

// SPDX-License-Identifier: Apache-2.0
// Merge, Delta, sink and reset (attention brief 1.2 to 1.4): one pass over memory each, a row of
// one head at a time. Sums keep one order, so results do not depend on the number of threads.
#include <cmath>

#include "kernels/kokkos/operators.hpp"
#include "kernels/kokkos/rows.hpp"
#include "ops/visit.hpp"

namespace tessera::kernels::portable {
namespace {

/// f<Exec, A>() for the space of the call and the type of argument i. Statistics are kept in f64 or
/// f32, never in 16 bits (ops/signature.cpp refuses that).
template <class F>
void visit(const ops::Call& call, std::size_t i, F f) {
  visit_space(call, [&]<class Exec>(std::type_identity<Exec>) {
    if (call.args[i].dtype == DType::f64) return f.template operator()<Exec, double>();
    f.template operator()<Exec, float>();
  });
}

template <class Exec, class A>
void merge(const ops::Call& call) {
  const auto o_in = view<Exec, A>(call.args[0]), lse_in = view<Exec, A>(call.args[1]);
  const auto o = view<Exec, A>(call.args[2]), lse = view<Exec, A>(call.args[3]);
  const std::int64_t m = o.extent(0), heads = o.extent(1), dim = o.extent(2);
  every_row<Exec>(
      "attn.merge", call, m, heads,
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t h, const LanesOf<Exec>& lanes) {
        merge_row(lanes, dim, &o(i, h, 0), lse(h, i, 0), &o_in(i, h, 0), lse_in(h, i, 0));
      });
}

template <class Exec, class TO, class TD>
void delta(const ops::Call& call) {
  using A = ops::Accumulate<TO>;
  const auto o = view<Exec, TO>(call.args[0]);
  const auto go = view<Exec, TD>(call.args[1]);
  const auto out = view<Exec, A>(call.args[2]);
  const std::int64_t m = o.extent(0), heads = o.extent(1), dim = o.extent(2);
  every_row<Exec>(
      "attn.delta", call, m, heads,
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t h, const LanesOf<Exec>& lanes) {
        const auto* x = &o(i, h, 0);
        const auto* y = &go(i, h, 0);
        const A sum = lanes.template sum<A>(
            dim, [=](std::int64_t c) { return static_cast<A>(x[c]) * static_cast<A>(y[c]); });
        lanes.once([&] { out(h, i, 0) = sum; });
      });
}

template <class Exec, class A>
void sink(const ops::Call& call) {
  const auto z = view<Exec, A>(call.args[0]), o = view<Exec, A>(call.args[1]),
             lse = view<Exec, A>(call.args[2]);
  const std::int64_t m = o.extent(0), heads = o.extent(1), dim = o.extent(2);
  every_row<Exec>(
      "attn.sink", call, m, heads,
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t h, const LanesOf<Exec>& lanes) {
        const A before = lse(h, i, 0), x = z(h, 0, 0), top = before < x ? x : before;
        if (before == minus_infinity<A> && x == minus_infinity<A>) return;
        const A after = top + std::log(std::exp(before - top) + std::exp(x - top));
        const A factor = std::exp(before - after);
        A* row = &o(i, h, 0);
        lanes.each(dim, [=](std::int64_t c) { row[c] *= factor; });
        lanes.once([&] { lse(h, i, 0) = after; });
      });
}

template <class Exec, class A>
void sink_grad(const ops::Call& call) {
  const auto z = view<Exec, A>(call.args[0]), lse = view<Exec, A>(call.args[1]),
             d = view<Exec, A>(call.args[2]), out = view<Exec, A>(call.args[3]);
  const std::int64_t heads = lse.extent(0), m = lse.extent(1);
  every_row<Exec>(
      "attn.sink_grad", call, heads, 1,
      KOKKOS_LAMBDA(std::int64_t h, std::int64_t, const LanesOf<Exec>& lanes) {
        const A sum = lanes.template sum<A>(m, [&](std::int64_t i) {
          const A l = lse(h, i, 0);
          return l == minus_infinity<A> ? A(0) : std::exp(z(h, 0, 0) - l) * d(h, i, 0);
        });
        lanes.once([&] { out(h, 0, 0) -= sum; });
      });
}

template <class Exec, class A>
void reset(const ops::Call& call) {
  const auto o = view<Exec, A>(call.args[0]), lse = view<Exec, A>(call.args[1]);
  const std::int64_t m = o.extent(0), heads = o.extent(1), dim = o.extent(2);
  every_row<Exec>(
      "attn.reset", call, m, heads,
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t h, const LanesOf<Exec>& lanes) {
        A* row = &o(i, h, 0);
        lanes.each(dim, [=](std::int64_t c) { row[c] = 0; });
        lanes.once([&] { lse(h, i, 0) = minus_infinity<A>; });
      });
}

}  // namespace

void attention_merge(const ops::Call& call) {
  visit(call, 0, [&]<class Exec, class A>() { merge<Exec, A>(call); });
}

void attention_delta(const ops::Call& call) {
  visit_space(call, [&]<class Exec>(std::type_identity<Exec>) {
    ops::visit_dtype(call.args[0].dtype, [&]<class TO>(TO) {
      ops::visit_dtype(call.args[1].dtype, [&]<class TD>(TD) { delta<Exec, TO, TD>(call); });
    });
  });
}

void attention_sink(const ops::Call& call) {
  visit(call, 1, [&]<class Exec, class A>() { sink<Exec, A>(call); });
}

void attention_sink_grad(const ops::Call& call) {
  visit(call, 1, [&]<class Exec, class A>() { sink_grad<Exec, A>(call); });
}

void attention_reset(const ops::Call& call) {
  visit(call, 0, [&]<class Exec, class A>() { reset<Exec, A>(call); });
}

}  // namespace tessera::kernels::portable

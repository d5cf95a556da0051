// SPDX-License-Identifier: Apache-2.0
// Merge, Delta, sink and reset (attention brief 1.2 to 1.4): one pass over memory each, a row of
// one head at a time. Sums keep one order, so results do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kokkos/operators.hpp"
#include "kernels/kokkos/views.hpp"
#include "ops/visit.hpp"

namespace tessera::kernels::portable {
namespace {

template <class A>
inline constexpr A minus_infinity = -std::numeric_limits<A>::infinity();

/// Statistics are kept in f64 or f32, never in bf16 (ops/signature.cpp refuses it).
template <class F>
void visit_accumulate(DType t, F&& f) {
  if (t == DType::f64) return f(double{});
  f(float{});
}

/// to <- keep * to + add * from. A side of weight 0 is not read: it may hold anything.
template <class A>
void blend(std::int64_t n, A keep, A* to, A add, const A* from) {
  if (add == 0) {
    if (keep == 1) return;
    for (std::int64_t c = 0; c < n; ++c) to[c] *= keep;
  } else if (keep == 0) {
    for (std::int64_t c = 0; c < n; ++c) to[c] = add * from[c];
  } else {
    for (std::int64_t c = 0; c < n; ++c) to[c] = keep * to[c] + add * from[c];
  }
}

template <class A>
void merge(const ops::Call& call) {
  const auto o_in = view<A>(call.args[0]), lse_in = view<A>(call.args[1]);
  const auto o = view<A>(call.args[2]), lse = view<A>(call.args[3]);
  const auto [m, heads, dim] = call.args[0].shape;
  every("attn.merge", m, [=, heads = heads, dim = dim](std::int64_t i) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const A mine = lse(h, i, 0), other = lse_in(h, i, 0), top = std::max(mine, other);
      if (mine == minus_infinity<A> && other == minus_infinity<A>) continue;  // (0, -inf) stays
      const A keep = std::exp(mine - top), add = std::exp(other - top), sum = keep + add;
      blend(dim, keep / sum, &o(i, h, 0), add / sum, &o_in(i, h, 0));
      lse(h, i, 0) = top + std::log(sum);
    }
  });
}

template <class TO, class TD>
void delta(const ops::Call& call) {
  using A = ops::Accumulate<TO>;
  const auto o = view<TO>(call.args[0]);
  const auto go = view<TD>(call.args[1]);
  const auto out = view<A>(call.args[2]);
  const auto [m, heads, dim] = call.args[0].shape;
  every("attn.delta", m, [=, heads = heads, dim = dim](std::int64_t i) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const TO* x = &o(i, h, 0);
      const TD* y = &go(i, h, 0);
      A sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t c = 0; c < dim; ++c) sum += static_cast<A>(x[c]) * static_cast<A>(y[c]);
      out(h, i, 0) = sum;
    }
  });
}

template <class A>
void sink(const ops::Call& call) {
  const auto z = view<A>(call.args[0]), o = view<A>(call.args[1]), lse = view<A>(call.args[2]);
  const auto [m, heads, dim] = call.args[1].shape;
  every("attn.sink", m, [=, heads = heads, dim = dim](std::int64_t i) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const A before = lse(h, i, 0), top = std::max(before, z(h, 0, 0));
      if (before == minus_infinity<A> && z(h, 0, 0) == minus_infinity<A>) continue;
      const A after = top + std::log(std::exp(before - top) + std::exp(z(h, 0, 0) - top));
      const A factor = std::exp(before - after);
      A* row = &o(i, h, 0);
      for (std::int64_t c = 0; c < dim; ++c) row[c] *= factor;
      lse(h, i, 0) = after;
    }
  });
}

template <class A>
void sink_grad(const ops::Call& call) {
  const auto z = view<A>(call.args[0]), lse = view<A>(call.args[1]), d = view<A>(call.args[2]);
  const auto out = view<A>(call.args[3]);
  const auto [heads, m, one] = call.args[1].shape;
  every("attn.sink_grad", heads, [=, m = m](std::int64_t h) {
    A sum = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      const A l = lse(h, i, 0);
      if (l != minus_infinity<A>) sum += std::exp(z(h, 0, 0) - l) * d(h, i, 0);
    }
    out(h, 0, 0) -= sum;
  });
}

template <class A>
void reset(const ops::Call& call) {
  const auto o = view<A>(call.args[0]), lse = view<A>(call.args[1]);
  const auto [m, heads, dim] = call.args[0].shape;
  every("attn.reset", m, [=, heads = heads, dim = dim](std::int64_t i) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::fill(&o(i, h, 0), &o(i, h, 0) + dim, A(0));
      lse(h, i, 0) = minus_infinity<A>;
    }
  });
}

}  // namespace

void attention_merge(const ops::Call& call) {
  visit_accumulate(call.args[0].dtype, [&]<class A>(A) { merge<A>(call); });
}

void attention_delta(const ops::Call& call) {
  ops::visit_dtype(call.args[0].dtype, [&]<class TO>(TO) {
    ops::visit_dtype(call.args[1].dtype, [&]<class TD>(TD) { delta<TO, TD>(call); });
  });
}

void attention_sink(const ops::Call& call) {
  visit_accumulate(call.args[1].dtype, [&]<class A>(A) { sink<A>(call); });
}

void attention_sink_grad(const ops::Call& call) {
  visit_accumulate(call.args[1].dtype, [&]<class A>(A) { sink_grad<A>(call); });
}

void attention_reset(const ops::Call& call) {
  visit_accumulate(call.args[0].dtype, [&]<class A>(A) { reset<A>(call); });
}

}  // namespace tessera::kernels::portable

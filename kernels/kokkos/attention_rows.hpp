// SPDX-License-Identifier: Apache-2.0
// Attention of a tile in any execution space, a row at a time over the keys (or queries) that it
// sees: online softmax, dK and dV by rows of keys, so that no two rows write the same place and
// sums have one order (attention brief 1.1 to 1.3). Plain loops, no BLAS, no tiles in fast memory.
#pragma once

#include <algorithm>
#include <span>

#include "kernels/kokkos/rows.hpp"
#include "ops/visit.hpp"

namespace tessera::kernels::portable {

/// Longest row that scratch memory of a GPU has room for, d or dv.
inline constexpr std::int64_t longest_row = 512;

/// Part of a mask as an argument of a kernel: nothing is allocated or copied for it. Parts follow
/// each other, since forward merges into (o, lse) and backward adds.
struct Bands {
  static constexpr std::int64_t most = 32;
  ops::Band at[most];
  std::int64_t count = 0;
};

/// f(part) over the bands that have cells in a tile of m queries and n keys, cut to it.
template <class F>
void every_part(std::span<const ops::Band> mask, std::int64_t m, std::int64_t n, F f) {
  Bands part;
  for (ops::Band b : mask) {
    b.q0 = std::max<std::int64_t>(b.q0, 0), b.q1 = std::min(b.q1, m);
    b.k0 = std::max<std::int64_t>(b.k0, 0), b.k1 = std::min(b.k1, n);
    if (b.q0 >= b.q1 || b.k0 >= b.k1) continue;
    part.at[part.count++] = b;
    if (part.count < Bands::most) continue;
    f(part);
    part.count = 0;
  }
  if (part.count > 0) f(part);
}

/// [begin, end) of [b0, b1) and [x0, x1]; empty when begin >= end.
KOKKOS_INLINE_FUNCTION Range common(std::int64_t b0, std::int64_t b1, std::int64_t x0,
                                    std::int64_t x1) {
  return {b0 < x0 ? x0 : b0, b1 < x1 + 1 ? b1 : x1 + 1};
}
KOKKOS_INLINE_FUNCTION Range keys_of(const ops::Band& b, std::int64_t q) {
  if (q < b.q0 || q >= b.q1) return {0, 0};
  return common(b.k0, b.k1, q + b.lo, q + b.hi);
}
KOKKOS_INLINE_FUNCTION Range queries_of(const ops::Band& b, std::int64_t k) {
  if (k < b.k0 || k >= b.k1) return {0, 0};
  return common(b.q0, b.q1, k - b.hi, k - b.lo);
}

/// The operands that forward and backward share, and the logits from them.
template <class Exec, class T>
struct Operands {
  using A = ops::Accumulate<T>;
  struct Logit {
    A value, slope;  ///< slope: derivative of the soft cap, 1 without one
  };

  StridedView<Exec, T> q, k, v;
  Bands bands;
  A scale, cap;

  Operands(const ops::Call& call, const Bands& part)
      : q(view<Exec, T>(call.args[0])),
        k(view<Exec, T>(call.args[1])),
        v(view<Exec, T>(call.args[2])),
        bands(part),
        scale(static_cast<A>(call.attributes.scale)),
        cap(static_cast<A>(call.attributes.softcap)) {}

  KOKKOS_INLINE_FUNCTION std::int64_t group() const { return q.extent(1) / k.extent(1); }

  /// sum over c of x[i, h, c] y[j, hy, c].
  template <class Lanes, class View>
  KOKKOS_INLINE_FUNCTION static A dot(const Lanes& lanes, const View& x, std::int64_t i,
                                      std::int64_t h, const View& y, std::int64_t j,
                                      std::int64_t hy) {
    const auto *a = &x(i, h, 0), *b = &y(j, hy, 0);
    return lanes.template sum<A>(
        x.extent(2), [=](std::int64_t c) { return static_cast<A>(a[c]) * static_cast<A>(b[c]); });
  }
  template <class Lanes>
  KOKKOS_INLINE_FUNCTION Logit logit(const Lanes& lanes, std::int64_t i, std::int64_t h,
                                     std::int64_t j) const {
    const A x = scale * dot(lanes, q, i, h, k, j, h / group());
    if (!(cap > 0)) return {x, A(1)};
    const A t = std::tanh(x / cap);
    return {cap * t, 1 - t * t};
  }
};

/// to[c] = keep to[c] + add x[c], c in [0, n).
template <class Lanes, class A, class X>
KOKKOS_INLINE_FUNCTION void add_row(const Lanes& lanes, std::int64_t n, A keep, A* to, A add,
                                    const X* x) {
  lanes.each(n, [=](std::int64_t c) { to[c] = keep * to[c] + add * static_cast<A>(x[c]); });
}

template <class Exec, class T>
struct ForwardRow {
  using A = ops::Accumulate<T>;
  Operands<Exec, T> in;
  StridedView<Exec, A> o, lse;

  template <class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t h, std::int64_t i, const Lanes& lanes) const {
    const std::int64_t n = in.v.extent(2), hk = h / in.group();
    A* part = lanes.template take<A>(n);
    lanes.each(n, [=](std::int64_t c) { part[c] = 0; });
    A top = minus_infinity<A>, sum = 0;
    for (std::int64_t b = 0; b < in.bands.count; ++b) {
      const Range keys = keys_of(in.bands.at[b], i);
      for (std::int64_t j = keys.begin; j < keys.end; ++j) {
        const A s = in.logit(lanes, i, h, j).value;
        if (s == minus_infinity<A>) continue;  // no weight
        const A high = s > top ? s : top, keep = std::exp(top - high), w = std::exp(s - high);
        add_row(lanes, n, keep, part, w, &in.v(j, hk, 0));
        sum = keep * sum + w;
        top = high;
      }
    }
    if (sum == 0) return;  // a row without a visible key stays as it was
    const A factor = 1 / sum;
    lanes.each(n, [=](std::int64_t c) { part[c] *= factor; });
    merge_row(lanes, n, &o(i, h, 0), lse(h, i, 0), part, top + std::log(sum));
  }
};

/// What the two kernels of the backward pass share: P and dS of one cell.
template <class Exec, class T>
struct Gradient {
  using A = ops::Accumulate<T>;
  struct Cell {
    A p, ds;
  };
  Operands<Exec, T> in;
  StridedView<Exec, T> go;
  StridedView<Exec, A> lse, delta;

  Gradient(const ops::Call& call, const Bands& part)
      : in(call, part),
        go(view<Exec, T>(call.args[3])),
        lse(view<Exec, A>(call.args[4])),
        delta(view<Exec, A>(call.args[5])) {}

  template <class Lanes>
  KOKKOS_INLINE_FUNCTION Cell cell(const Lanes& lanes, std::int64_t i, std::int64_t h,
                                   std::int64_t j) const {
    const auto s = in.logit(lanes, i, h, j);
    const A p = std::exp(s.value - lse(h, i, 0));
    const A dp = in.dot(lanes, go, i, h, in.v, j, h / in.group());
    return {p, p * (dp - delta(h, i, 0)) * s.slope};
  }
};

template <class Exec, class T>
struct QueryGradientRow {
  using A = ops::Accumulate<T>;
  Gradient<Exec, T> of;
  StridedView<Exec, A> dq;

  template <class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t h, std::int64_t i, const Lanes& lanes) const {
    if (of.lse(h, i, 0) == minus_infinity<A>) return;  // an empty row has no gradient
    const std::int64_t n = dq.extent(2), hk = h / of.in.group();
    A* sum = lanes.template take<A>(n);
    lanes.each(n, [=](std::int64_t c) { sum[c] = 0; });
    for (std::int64_t b = 0; b < of.in.bands.count; ++b) {
      const Range keys = keys_of(of.in.bands.at[b], i);
      for (std::int64_t j = keys.begin; j < keys.end; ++j)
        add_row(lanes, n, A(1), sum, of.cell(lanes, i, h, j).ds, &of.in.k(j, hk, 0));
    }
    add_row(lanes, n, A(1), &dq(i, h, 0), of.in.scale, sum);
  }
};

template <class Exec, class T>
struct KeyGradientRow {
  using A = ops::Accumulate<T>;
  Gradient<Exec, T> of;
  StridedView<Exec, A> dk, dv;

  template <class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t hk, std::int64_t j,
                                         const Lanes& lanes) const {
    const std::int64_t n = dk.extent(2), nv = dv.extent(2), group = of.in.group();
    A *sum = lanes.template take<A>(n), *sum_v = lanes.template take<A>(nv);
    lanes.each(n, [=](std::int64_t c) { sum[c] = 0; });
    lanes.each(nv, [=](std::int64_t c) { sum_v[c] = 0; });
    for (std::int64_t h = hk * group; h < (hk + 1) * group; ++h) {
      for (std::int64_t b = 0; b < of.in.bands.count; ++b) {
        const Range rows = queries_of(of.in.bands.at[b], j);
        for (std::int64_t i = rows.begin; i < rows.end; ++i) {
          if (of.lse(h, i, 0) == minus_infinity<A>) continue;
          const auto cell = of.cell(lanes, i, h, j);
          add_row(lanes, nv, A(1), sum_v, cell.p, &of.go(i, h, 0));
          add_row(lanes, n, A(1), sum, cell.ds, &of.in.q(i, h, 0));
        }
      }
    }
    add_row(lanes, n, A(1), &dk(j, hk, 0), of.in.scale, sum);
    add_row(lanes, nv, A(1), &dv(j, hk, 0), A(1), sum_v);
  }
};

/// attention.forward on a space; the arguments are as in ops/call.hpp.
template <class Exec>
void forward_rows(const Exec& space, const ops::Call& call) {
  const auto& a = call.args;
  const std::int64_t m = a[0].shape[0], n = a[1].shape[0], heads = a[0].shape[1];
  ops::visit_dtype(a[0].dtype, [&]<class T>(T) {
    using A = ops::Accumulate<T>;
    every_part(call.attributes.mask, m, n, [&](const Bands& part) {
      every_team_row("attn.forward", space, heads, m, a[2].shape[2] * sizeof(A),
                     ForwardRow<Exec, T>{Operands<Exec, T>(call, part), view<Exec, A>(a[3]),
                                         view<Exec, A>(a[4])});
    });
  });
}

/// attention.backward on a space.
template <class Exec>
void backward_rows(const Exec& space, const ops::Call& call) {
  const auto& a = call.args;
  const std::int64_t m = a[0].shape[0], heads = a[0].shape[1], d = a[0].shape[2];
  const std::int64_t n = a[2].shape[0], key_heads = a[2].shape[1], dv = a[2].shape[2];
  ops::visit_dtype(a[0].dtype, [&]<class T>(T) {
    using A = ops::Accumulate<T>;
    every_part(call.attributes.mask, m, n, [&](const Bands& part) {
      const Gradient<Exec, T> of(call, part);
      every_team_row("attn.backward.dq", space, heads, m, d * sizeof(A),
                     QueryGradientRow<Exec, T>{of, view<Exec, A>(a[6])});
      every_team_row("attn.backward.dk_dv", space, key_heads, n, (d + dv) * sizeof(A),
                     KeyGradientRow<Exec, T>{of, view<Exec, A>(a[7]), view<Exec, A>(a[8])});
    });
  });
}

}  // namespace tessera::kernels::portable

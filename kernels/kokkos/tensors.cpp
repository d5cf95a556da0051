// SPDX-License-Identifier: Apache-2.0
// zero, copy, add and sum of strided tensors with conversion, one pair after the other. Dimensions
// without gaps between them are joined first, so that dense data is one long row and slices run
// over their longest stretch.
#include <span>

#include "kernels/kokkos/operators.hpp"
#include "kernels/kokkos/rows.hpp"
#include "ops/visit.hpp"

namespace tessera::kernels::portable {
namespace {

/// The two tensors of an operator after joining dimensions that neither separates by a gap.
struct Pair {
  TensorRef x, y;

  Pair(const TensorRef& a, const TensorRef& b) : x(a), y(b) {
    if (joinable(1)) join(1);
    if (joinable(1)) join(1);
    if (joinable(0)) join(0);
  }

 private:
  bool joinable(int d) const {
    const auto dense = [d](const TensorRef& t) {
      return t.shape[d] == 1 || t.shape[d + 1] == 1 ||
             t.stride[d] == t.stride[d + 1] * t.shape[d + 1];
    };
    return dense(x) && dense(y);
  }

  /// Dimensions d and d + 1 become d + 1; those before d move up, a 1 enters in front.
  void join(int d) {
    for (TensorRef* t : {&x, &y}) {
      if (t->shape[d + 1] == 1) t->stride[d + 1] = t->stride[d];
      t->shape[d + 1] *= t->shape[d];
      if (d == 1) t->shape[1] = t->shape[0], t->stride[1] = t->stride[0];
      t->shape[0] = 1, t->stride[0] = 0;
    }
  }
};

/// f(element of x, element of y) for all pairs of elements of a and b.
template <class Exec, class X, class Y, class F>
void every_pair(const char* label, const ops::Call& call, const TensorRef& a, const TensorRef& b,
                F f) {
  const Pair p(a, b);
  const auto x = view<Exec, X>(p.x);
  const auto y = view<Exec, Y>(p.y);
  const std::int64_t rows = p.x.shape[1], length = p.x.shape[2];
  // Elements of one task: long rows are shared by threads.
  const std::int64_t stretch = is_device<Exec> ? 1 << 10 : 1 << 14;
  const std::int64_t parts = (length + stretch - 1) / stretch;
  const bool unit = (p.x.stride[2] == 1 && p.y.stride[2] == 1) || length == 1;
  every_row<Exec>(
      label, call, p.x.shape[0] * rows * parts, 1,
      KOKKOS_LAMBDA(std::int64_t task, std::int64_t, const LanesOf<Exec>& lanes) {
        const std::int64_t row = task / parts, begin = task % parts * stretch;
        const std::int64_t n = begin + stretch < length ? stretch : length - begin;
        auto* from = &x(row / rows, row % rows, begin);
        auto* to = &y(row / rows, row % rows, begin);
        if (unit) {
          lanes.each(n, [=](std::int64_t c) { f(from[c], to[c]); });
        } else {
          const std::int64_t step = x.stride(2), step_to = y.stride(2);
          lanes.each(n, [=](std::int64_t c) { f(from[c * step], to[c * step_to]); });
        }
      });
}

struct Zero {
  template <class X>
  KOKKOS_INLINE_FUNCTION void operator()(const X&, X& x) const {
    x = X{};
  }
};
struct Copy {
  template <class X, class Y>
  KOKKOS_INLINE_FUNCTION void operator()(const X& x, Y& y) const {
    y = convert<Y>(x);
  }
};
struct Add {
  template <class X, class Y>
  KOKKOS_INLINE_FUNCTION void operator()(const X& x, Y& y) const {
    using A = ops::Accumulate<Y>;
    y = convert<Y>(static_cast<A>(y) + static_cast<A>(x));
  }
};

/// f over the elements of every pair of arguments.
template <class F>
void run(const char* label, const ops::Call& call, F f) {
  for (std::size_t at = 0; at < call.args.size(); at += 2) {
    const TensorRef &a = call.args[at], &b = call.args[at + 1];
    visit_space(call, [&]<class Exec>(std::type_identity<Exec>) {
      ops::visit_dtype(a.dtype, [&]<class X>(X) {
        ops::visit_dtype(b.dtype,
                         [&]<class Y>(Y) { every_pair<Exec, X, Y>(label, call, a, b, f); });
      });
    });
  }
}

/// The terms of a sum, as a kernel takes them along: plain addresses and strides.
template <class X>
struct Terms {
  struct Term {
    const X* data;
    std::int64_t stride[2];
    KOKKOS_INLINE_FUNCTION const X* row(std::int64_t i, std::int64_t j) const {
      return data + i * stride[0] + j * stride[1];
    }
  };
  Term term[ops::max_terms];
  int count = 0;

  /// y[0, n) <- the sum of the terms at row (i, j); elements of rows lie side by side.
  template <class A, class Lanes, class Y>
  KOKKOS_INLINE_FUNCTION void sum(const Lanes& lanes, std::int64_t i, std::int64_t j,
                                  std::int64_t n, Y* y) const {
    if constexpr (std::is_same_v<Lanes, OneByOne>) {  // one term at a time: loops that vectorise
      constexpr std::int64_t stretch = 256;
      A part[stretch];
      for (std::int64_t at = 0; at < n; at += stretch) {
        const std::int64_t m = at + stretch < n ? stretch : n - at;
        for (std::int64_t c = 0; c < m; ++c) part[c] = static_cast<A>(term[0].row(i, j)[at + c]);
        for (int t = 1; t < count; ++t) {
          const X* x = term[t].row(i, j) + at;
          for (std::int64_t c = 0; c < m; ++c) part[c] += static_cast<A>(x[c]);
        }
        for (std::int64_t c = 0; c < m; ++c) y[at + c] = convert<Y>(part[c]);
      }
    } else {
      lanes.each(n, [&](std::int64_t c) {
        A total = static_cast<A>(term[0].row(i, j)[c]);
        for (int t = 1; t < count; ++t) total += static_cast<A>(term[t].row(i, j)[c]);
        y[c] = convert<Y>(total);
      });
    }
  }
};

template <class Exec, class X, class Y>
void sum_rows(const ops::Call& call) {
  using A = ops::Accumulate<Y>;
  using From = typename ElementOf<Exec, X>::type;
  using To = typename ElementOf<Exec, Y>::type;
  Terms<From> terms{};
  for (const TensorRef& t : std::span(call.args).first(call.args.size() - 1))
    terms.term[terms.count++] = {t.as<From>(), {t.stride[0], t.stride[1]}};
  const TensorRef& out = call.args.back();
  To* y = out.as<To>();
  const std::int64_t s0 = out.stride[0], s1 = out.stride[1], n = out.shape[2];
  every_row<Exec>(
      "tensor.sum", call, out.shape[0], out.shape[1],
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t j, const LanesOf<Exec>& lanes) {
        terms.template sum<A>(lanes, i, j, n, y + i * s0 + j * s1);
      });
}

}  // namespace

void tensor_zero(const ops::Call& call) {
  for (const TensorRef& x : call.args) {
    visit_space(call, [&]<class Exec>(std::type_identity<Exec>) {
      ops::visit_dtype(
          x.dtype, [&]<class T>(T) { every_pair<Exec, T, T>("tensor.zero", call, x, x, Zero()); });
    });
  }
}

void tensor_copy(const ops::Call& call) { run("tensor.copy", call, Copy()); }

void tensor_add(const ops::Call& call) { run("tensor.add", call, Add()); }

void tensor_sum(const ops::Call& call) {
  visit_space(call, [&]<class Exec>(std::type_identity<Exec>) {
    ops::visit_dtype(call.args.front().dtype, [&]<class X>(X) {
      ops::visit_dtype(call.args.back().dtype, [&]<class Y>(Y) { sum_rows<Exec, X, Y>(call); });
    });
  });
}

}  // namespace tessera::kernels::portable

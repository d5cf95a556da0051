// SPDX-License-Identifier: Apache-2.0
// zero, copy and add of strided tensors with conversion. Dimensions without gaps between them are
// joined first, so that dense data is one long row and slices run over their longest stretch.
#include <array>
#include <type_traits>

#include "kernels/kokkos/operators.hpp"
#include "kernels/kokkos/views.hpp"
#include "ops/visit.hpp"

namespace tessera::kernels::portable {
namespace {

constexpr std::int64_t stretch = 1 << 14;  // elements of one task: long rows are shared by threads

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

/// f(pointer into x, pointer into y, count) over all stretches, in parallel.
template <class X, class Y, class F>
void every_stretch(const char* label, const TensorRef& a, const TensorRef& b, F f) {
  const Pair p(a, b);
  const auto x = view<X>(p.x);
  const auto y = view<Y>(p.y);
  const auto [n0, n1, n2] = p.x.shape;
  const std::int64_t parts = (n2 + stretch - 1) / stretch, rows = n1, length = n2;
  const bool unit = (p.x.stride[2] == 1 && p.y.stride[2] == 1) || n2 == 1;
  every(label, n0 * n1 * parts, [=](std::int64_t task) {
    const std::int64_t row = task / parts, begin = task % parts * stretch;
    const std::int64_t end = std::min(begin + stretch, length);
    const std::int64_t i = row / rows, j = row % rows;
    if (unit) return f(&x(i, j, begin), &y(i, j, begin), end - begin);
    for (std::int64_t k = begin; k < end; ++k) f(&x(i, j, k), &y(i, j, k), std::int64_t{1});
  });
}

template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<From, To>) {
    return x;
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return BFloat16(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace

void tensor_zero(const ops::Call& call) {
  ops::visit_dtype(call.args[0].dtype, [&]<class T>(T) {
    every_stretch<T, T>("tensor.zero", call.args[0], call.args[0],
                        [](T* x, T*, std::int64_t n) { std::fill(x, x + n, T{}); });
  });
}

void tensor_copy(const ops::Call& call) {
  ops::visit_dtype(call.args[0].dtype, [&]<class X>(X) {
    ops::visit_dtype(call.args[1].dtype, [&]<class Y>(Y) {
      every_stretch<X, Y>("tensor.copy", call.args[0], call.args[1],
                          [](const X* x, Y* y, std::int64_t n) {
                            for (std::int64_t c = 0; c < n; ++c) y[c] = convert<Y>(x[c]);
                          });
    });
  });
}

void tensor_add(const ops::Call& call) {
  ops::visit_dtype(call.args[0].dtype, [&]<class X>(X) {
    ops::visit_dtype(call.args[1].dtype, [&]<class Y>(Y) {
      using A = ops::Accumulate<Y>;
      every_stretch<X, Y>("tensor.add", call.args[0], call.args[1],
                          [](const X* x, Y* y, std::int64_t n) {
                            for (std::int64_t c = 0; c < n; ++c) {
                              y[c] = convert<Y>(static_cast<A>(y[c]) + static_cast<A>(x[c]));
                            }
                          });
    });
  });
}

}  // namespace tessera::kernels::portable

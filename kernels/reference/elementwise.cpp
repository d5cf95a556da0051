// SPDX-License-Identifier: Apache-2.0
// Merge, Delta, sink (attention brief 1.2 to 1.4) and the tensor operators as plain loops.
#include <span>

#include "kernels/reference/operators.hpp"
#include "ops/visit.hpp"

namespace tessera::kernels::reference {
namespace {

template <class F>
void every_element(const TensorRef& x, F f) {
  for (std::int64_t i = 0; i < x.shape[0]; ++i) {
    for (std::int64_t j = 0; j < x.shape[1]; ++j) {
      for (std::int64_t k = 0; k < x.shape[2]; ++k) f(i, j, k);
    }
  }
}

/// f(x, y) for every element of every pair of arguments.
template <class F>
void every_pair(const ops::Call& call, F f) {
  for (std::size_t at = 0; at < call.args.size(); at += 2) {
    const TensorRef &x = call.args[at], &y = call.args[at + 1];
    ops::visit_dtype(x.dtype, [&]<class X>(X) {
      ops::visit_dtype(y.dtype, [&]<class Y>(Y) {
        every_element(x, [&](auto i, auto j, auto k) { f(x.at<X>(i, j, k), y.at<Y>(i, j, k)); });
      });
    });
  }
}

/// Calls f for the accumulate types only; statistics are f64 or f32.
template <class F>
void visit_accumulate(DType t, F&& f) {
  if (t == DType::f64) return f(double{});
  return f(float{});
}

}  // namespace

void attention_merge(const ops::Call& call) {
  const auto& a = call.args;
  visit_accumulate(a[0].dtype, [&]<class A>(A) {
    for (std::int64_t i = 0; i < a[0].shape[0]; ++i) {
      for (std::int64_t h = 0; h < a[0].shape[1]; ++h) {
        merge_row(a[0].shape[2], &a[0].at<A>(i, h), a[1].at<A>(h, i), &a[2].at<A>(i, h),
                  a[3].at<A>(h, i));
      }
    }
  });
}

void attention_delta(const ops::Call& call) {
  const TensorRef &o = call.args[0], &go = call.args[1], &delta = call.args[2];
  ops::visit_dtype(o.dtype, [&]<class TO>(TO) {
    ops::visit_dtype(go.dtype, [&]<class TD>(TD) {
      using A = ops::Accumulate<TO>;
      for (std::int64_t i = 0; i < o.shape[0]; ++i) {
        for (std::int64_t h = 0; h < o.shape[1]; ++h) {
          A sum = 0;
          for (std::int64_t c = 0; c < o.shape[2]; ++c) {
            sum += static_cast<A>(o.at<TO>(i, h, c)) * static_cast<A>(go.at<TD>(i, h, c));
          }
          delta.at<A>(h, i) = sum;
        }
      }
    });
  });
}

void attention_sink(const ops::Call& call) {
  const TensorRef &sink = call.args[0], &o = call.args[1], &lse = call.args[2];
  visit_accumulate(o.dtype, [&]<class A>(A) {
    for (std::int64_t h = 0; h < o.shape[1]; ++h) {
      const A z = sink.at<A>(h);
      for (std::int64_t i = 0; i < o.shape[0]; ++i) {
        const A empty = -std::numeric_limits<A>::infinity();
        const A before = lse.at<A>(h, i), top = std::max(before, z);
        if (before == empty && z == empty) continue;
        const A after = top + std::log(std::exp(before - top) + std::exp(z - top));
        for (std::int64_t c = 0; c < o.shape[2]; ++c) o.at<A>(i, h, c) *= std::exp(before - after);
        lse.at<A>(h, i) = after;
      }
    }
  });
}

void attention_sink_grad(const ops::Call& call) {
  const TensorRef &sink = call.args[0], &lse = call.args[1], &delta = call.args[2];
  visit_accumulate(lse.dtype, [&]<class A>(A) {
    for (std::int64_t h = 0; h < lse.shape[0]; ++h) {
      A sum = 0;
      for (std::int64_t i = 0; i < lse.shape[1]; ++i) {
        if (lse.at<A>(h, i) == -std::numeric_limits<A>::infinity()) continue;
        sum += std::exp(sink.at<A>(h) - lse.at<A>(h, i)) * delta.at<A>(h, i);
      }
      call.args[3].at<A>(h) -= sum;
    }
  });
}

void attention_reset(const ops::Call& call) {
  const TensorRef &o = call.args[0], &lse = call.args[1];
  visit_accumulate(o.dtype, [&]<class A>(A) {
    every_element(o, [&](auto i, auto j, auto k) { o.at<A>(i, j, k) = 0; });
    every_element(lse, [&](auto i, auto j, auto k) {
      lse.at<A>(i, j, k) = -std::numeric_limits<A>::infinity();
    });
  });
}

void tensor_zero(const ops::Call& call) {
  for (const TensorRef& x : call.args) {
    ops::visit_dtype(x.dtype, [&]<class T>(T) {
      every_element(x, [&](auto i, auto j, auto k) { x.at<T>(i, j, k) = T{}; });
    });
  }
}

void tensor_copy(const ops::Call& call) {
  every_pair(call, []<class X, class Y>(X x, Y& y) { y = element_cast<Y>(x); });
}

void tensor_add(const ops::Call& call) {
  every_pair(call, []<class X, class Y>(X x, Y& y) {
    using A = ops::Accumulate<Y>;
    y = element_cast<Y>(static_cast<A>(y) + static_cast<A>(x));
  });
}

void tensor_sum(const ops::Call& call) {
  const TensorRef &first = call.args.front(), &y = call.args.back();
  const std::span terms = std::span(call.args).first(call.args.size() - 1);
  ops::visit_dtype(first.dtype, [&]<class X>(X) {
    ops::visit_dtype(y.dtype, [&]<class Y>(Y) {
      using A = ops::Accumulate<Y>;
      every_element(y, [&](auto i, auto j, auto k) {
        A sum = static_cast<A>(first.at<X>(i, j, k));
        for (const TensorRef& x : terms.subspan(1)) sum += static_cast<A>(x.at<X>(i, j, k));
        y.at<Y>(i, j, k) = element_cast<Y>(sum);
      });
    });
  });
}

}  // namespace tessera::kernels::reference

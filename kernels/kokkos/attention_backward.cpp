// SPDX-License-Identifier: Apache-2.0
// Backward of one tile from the final LSE and Delta (attention brief 1.3): recompute P, then five
// matrix products. One task per key head: dK and dV sum over its query heads in a fixed order.
#include "kernels/kokkos/blas.hpp"
#include "kernels/kokkos/exp2.hpp"
#include "kernels/kokkos/operators.hpp"
#include "kernels/kokkos/scratch.hpp"
#include "kernels/kokkos/tile.hpp"

namespace tessera::kernels::portable {
namespace {

template <class T>
class BackwardHead {
 public:
  using A = ops::Accumulate<T>;
  using B = Blocks<A>;

  BackwardHead(const ops::Call& call, std::int64_t key_head, const Progress& progress)
      : call_(call), kh_(key_head), progress_(progress) {}

  void run() {
    const auto& a = call_.args;
    const std::int64_t m = a[0].shape[0], n = a[1].shape[0];
    const std::int64_t scores = B::rows * B::stride;
    Scratch<A> scratch(2 * n * (d_ + dv_) + B::rows * (2 * d_ + dv_) + 3 * scores);
    k_ = scratch.take(n * d_), v_ = scratch.take(n * dv_);
    dk_ = scratch.take(n * d_), dv_sum_ = scratch.take(n * dv_);
    q_ = scratch.take(B::rows * d_), dq_ = scratch.take(B::rows * d_);
    do_ = scratch.take(B::rows * dv_);
    p_ = scratch.take(scores), ds_ = scratch.take(scores);
    slope_ = cap_ > 0 ? scratch.take(scores) : nullptr;
    const std::vector<Range> seen = visible_keys(call_.attributes.mask, {0, m}, {0, n});
    pack<T>(a[1], kh_, {0, n}, seen, k_);
    pack<T>(a[2], kh_, {0, n}, seen, v_);
    std::fill(dk_, dk_ + n * d_, A(0));
    std::fill(dv_sum_, dv_sum_ + n * dv_, A(0));

    const std::int64_t group = a[0].shape[1] / a[1].shape[1];
    every_block(m, B::rows, [&](Range q) {
      const std::vector<Piece> work = pieces(call_.attributes.mask, q, {0, n}, B::cut);
      for (std::int64_t h = kh_ * group; h < (kh_ + 1) * group; ++h) block(q, h, work);
    });
    add_rows(a[7], kh_, 0, seen, dk_);
    add_rows(a[8], kh_, 0, seen, dv_sum_);
  }

 private:
  void block(Range q, std::int64_t h, const std::vector<Piece>& work) {
    if (work.empty()) return;
    const auto& a = call_.args;
    const auto seen = visible_queries(call_.attributes.mask, q, {0, a[1].shape[0]});
    pack<T>(a[0], h, q, seen, q_);
    pack<T>(a[3], h, q, seen, do_);
    std::fill(dq_, dq_ + q.size() * d_, A(0));
    for (const Piece& p : work) piece(q, h, p);
    add_rows(a[6], h, q.begin, seen, dq_);
  }

  void piece(Range q, std::int64_t h, const Piece& p) {
    const std::int64_t rows = p.q.size(), keys = p.k.size(), first = p.q.begin - q.begin;
    const A scale = static_cast<A>(call_.attributes.scale);
    const A alpha = cap_ > 0 ? scale : static_cast<A>(call_.attributes.scale * std::numbers::log2e);
    A *q0 = q_ + first * d_, *do0 = do_ + first * dv_, *p0 = p_ + first * B::stride;
    A *ds0 = ds_ + first * B::stride, *k0 = k_ + p.k.begin * d_, *v0 = v_ + p.k.begin * dv_;
    gemm<A>(rows, keys, d_, alpha, {q0, d_}, {k0, d_, true}, A(0), {p0, B::stride});
    gemm<A>(rows, keys, dv_, A(1), {do0, dv_}, {v0, dv_, true}, A(0), {ds0, B::stride});
    for (std::int64_t i = p.q.begin; i < p.q.end; ++i) weights(q, h, p, i);
    progress_();
    gemm<A>(keys, dv_, rows, A(1), {p0, B::stride, true}, {do0, dv_}, A(1),
            {dv_sum_ + p.k.begin * dv_, dv_});
    gemm<A>(keys, d_, rows, scale, {ds0, B::stride, true}, {q0, d_}, A(1),
            {dk_ + p.k.begin * d_, d_});
    gemm<A>(rows, d_, keys, scale, {ds0, B::stride}, {k0, d_}, A(1), {dq_ + first * d_, d_});
    progress_();
  }

  /// Turns row i of the scores into P and of dP into dS; masked cells become exactly 0 in both.
  void weights(Range q, std::int64_t h, const Piece& p, std::int64_t i) {
    const std::int64_t offset = (i - q.begin) * B::stride - p.k.begin;  // indexed by key
    const A lse = call_.args[4].at<A>(h, i), delta = call_.args[5].at<A>(h, i);
    const A top = static_cast<A>(static_cast<double>(lse) * std::numbers::log2e);
    keys_of_row(p, i, keys_);
    if (lse == minus_infinity<A>) keys_.clear();  // an empty row has no gradient
    std::int64_t done = p.k.begin;
    for (const Range& r : keys_) {
      zero(offset, {done, r.begin});
      if (cap_ > 0) soften(offset, r);
      A *s = p_ + offset, *ds = ds_ + offset;
      for (std::int64_t j = r.begin; j < r.end; ++j) {
        s[j] = exp2_fast(s[j] - top);
        ds[j] = s[j] * (ds[j] - delta);
      }
      if (cap_ > 0) {
        for (std::int64_t j = r.begin; j < r.end; ++j) ds[j] *= slope_[offset + j];
      }
      done = r.end;
    }
    zero(offset, {done, p.k.end});
  }

  void zero(std::int64_t offset, Range r) {
    std::fill(p_ + offset + r.begin, p_ + offset + r.end, A(0));
    std::fill(ds_ + offset + r.begin, ds_ + offset + r.end, A(0));
  }

  /// Soft-capped scores in base 2, and the slope 1 - tanh^2 that dS is multiplied by.
  void soften(std::int64_t offset, Range r) {
    const A inverse = static_cast<A>(1 / cap_), factor = static_cast<A>(cap_ * std::numbers::log2e);
    A *p = p_ + offset, *slope = slope_ + offset;
    for (std::int64_t j = r.begin; j < r.end; ++j) {
      const A t = tanh_fast(p[j] * inverse);
      p[j] = factor * t;
      slope[j] = 1 - t * t;
    }
  }

  /// x[i, head, :] += from[i - first, :] for the rows that took part.
  static void add_rows(const TensorRef& x, std::int64_t head, std::int64_t first,
                       std::span<const Range> rows, const A* from) {
    const std::int64_t dim = x.shape[2];
    for (const Range& r : rows) {
      for (std::int64_t i = r.begin; i < r.end; ++i) {
        A* to = &x.at<A>(i, head);
        const A* y = from + (i - first) * dim;
        for (std::int64_t c = 0; c < dim; ++c) to[c] += y[c];
      }
    }
  }

  const ops::Call& call_;
  const std::int64_t kh_;
  const Progress& progress_;
  const std::int64_t d_ = call_.args[1].shape[2], dv_ = call_.args[2].shape[2];
  const double cap_ = call_.attributes.softcap;
  A *k_ = nullptr, *v_ = nullptr, *dk_ = nullptr, *dv_sum_ = nullptr;  // [n, d or dv]
  A *q_ = nullptr, *dq_ = nullptr, *do_ = nullptr;                     // [rows, d or dv]
  A *p_ = nullptr, *ds_ = nullptr, *slope_ = nullptr;                  // [rows, stride]
  std::vector<Range> keys_;
};

}  // namespace

void attention_backward(const ops::Call& call) {
  const Progress progress(call);
  ops::visit_dtype(call.args[0].dtype, [&]<class T>(T) {
    every_key_head("attn.backward", call.args[1].shape[1],
                   [&](std::int64_t h) { BackwardHead<T>(call, h, progress).run(); });
  });
}

}  // namespace tessera::kernels::portable

// SPDX-License-Identifier: Apache-2.0
// Forward of one tile with online softmax (attention brief 1.1, 1.2; Dao, FlashAttention-2,
// arXiv 2307.08691, algorithm 1), starting from the (o, lse) that came in. Scores are in base 2.
#include <array>

#include "kernels/kokkos/blas.hpp"
#include "kernels/kokkos/exp2.hpp"
#include "kernels/kokkos/operators.hpp"
#include "kernels/kokkos/scratch.hpp"
#include "kernels/kokkos/tile.hpp"

namespace tessera::kernels::portable {
namespace {

/// Running state of a row: O is kept unnormalised, weighted by 2^-top.
template <class A>
struct Row {
  A top = minus_infinity<A>;  ///< base-2 logarithm that everything is relative to
  double sum = 0;             ///< sum of weights
  bool touched = false;
};

template <class T>
class ForwardHead {
 public:
  using A = ops::Accumulate<T>;
  using B = Blocks<A>;

  ForwardHead(const ops::Call& call, std::int64_t key_head, const Progress& progress)
      : call_(call), kh_(key_head), progress_(progress) {}

  void run() {
    const auto& a = call_.args;
    const Range all_k{0, a[1].shape[0]}, all_q{0, a[0].shape[0]};
    Scratch<A> scratch(all_k.size() * (d_ + dv_) + B::rows * (d_ + dv_ + B::stride));
    k_ = scratch.take(all_k.size() * d_);
    v_ = scratch.take(all_k.size() * dv_);
    q_ = scratch.take(B::rows * d_);
    o_ = scratch.take(B::rows * dv_);
    s_ = scratch.take(B::rows * B::stride);
    const std::vector<Range> seen = visible_keys(call_.attributes.mask, all_q, all_k);
    pack<T>(a[1], kh_, all_k, seen, k_);
    pack<T>(a[2], kh_, all_k, seen, v_);

    const std::int64_t group = a[0].shape[1] / a[1].shape[1];
    every_block(all_q.size(), B::rows, [&](Range q) {
      const std::vector<Piece> work = pieces(call_.attributes.mask, q, all_k, B::cut);
      for (std::int64_t h = kh_ * group; h < (kh_ + 1) * group; ++h) block(q, h, work);
    });
  }

 private:
  void block(Range q, std::int64_t h, const std::vector<Piece>& work) {
    if (work.empty()) return;
    const Range all_k{0, call_.args[1].shape[0]};
    pack<T>(call_.args[0], h, q, visible_queries(call_.attributes.mask, q, all_k), q_);
    load(q, h);
    for (const Piece& p : work) {
      scores(q, p);
      for (std::int64_t i = p.q.begin; i < p.q.end; ++i) softmax(q, p, i);
      accumulate(q, p);
      progress_();
    }
    store(q, h);
  }

  void load(Range q, std::int64_t h) {
    for (std::int64_t i = q.begin; i < q.end; ++i) {
      Row<A>& row = rows_[i - q.begin];
      row = {};
      A* o = o_ + (i - q.begin) * dv_;
      const A lse = call_.args[4].at<A>(h, i);
      if (lse == minus_infinity<A>) {
        std::fill(o, o + dv_, A(0));
        continue;
      }
      row.top = static_cast<A>(static_cast<double>(lse) * std::numbers::log2e);
      row.sum = 1;
      const A* from = &call_.args[3].at<A>(i, h);
      std::copy(from, from + dv_, o);
    }
  }

  void scores(Range q, const Piece& p) {
    const A alpha = static_cast<A>(cap_ > 0 ? call_.attributes.scale
                                            : call_.attributes.scale * std::numbers::log2e);
    gemm<A>(p.q.size(), p.k.size(), d_, alpha, {q_ + (p.q.begin - q.begin) * d_, d_},
            {k_ + p.k.begin * d_, d_, true}, A(0), {score(q, p.q.begin), B::stride});
  }

  void softmax(Range q, const Piece& p, std::int64_t i) {
    A* s = score(q, i) - p.k.begin;  // indexed by key
    keys_of_row(p, i, keys_);
    Row<A>& row = rows_[i - q.begin];
    A top = row.top;
    std::int64_t done = p.k.begin;
    for (const Range& r : keys_) {
      std::fill(s + done, s + r.begin, A(0));
      if (cap_ > 0) soften(s + r.begin, r.size());
      top = row_max(s + r.begin, r.size(), top);
      done = r.end;
    }
    std::fill(s + done, s + p.k.end, A(0));
    if (keys_.empty()) return;
    if (top == minus_infinity<A> && no_weight(s)) {
      std::fill(s + p.k.begin, s + p.k.end, A(0));
      return;
    }
    rescale(row, top, o_ + (i - q.begin) * dv_);
    for (const Range& r : keys_) row.sum += exp2_row(s + r.begin, r.size(), top);
    row.touched = true;
  }

  /// Every visible logit of the row is -inf; a NaN among them is not, and must show in O.
  bool no_weight(const A* s) const {
    return std::all_of(keys_.begin(), keys_.end(), [&](const Range& r) {
      return std::all_of(s + r.begin, s + r.end, [](A x) { return x == minus_infinity<A>; });
    });
  }

  void rescale(Row<A>& row, A top, A* o) {
    if (row.top != top && row.sum != 0) {
      const A factor = exp2_fast(row.top - top);
      row.sum *= factor;
      for (std::int64_t c = 0; c < dv_; ++c) o[c] *= factor;
    }
    row.top = top;
  }

  void soften(A* s, std::int64_t n) const {
    const A inverse = static_cast<A>(1 / cap_), factor = static_cast<A>(cap_ * std::numbers::log2e);
    for (std::int64_t j = 0; j < n; ++j) s[j] = factor * tanh_fast(s[j] * inverse);
  }

  void accumulate(Range q, const Piece& p) {
    gemm<A>(p.q.size(), dv_, p.k.size(), A(1), {score(q, p.q.begin), B::stride},
            {v_ + p.k.begin * dv_, dv_}, A(1), {o_ + (p.q.begin - q.begin) * dv_, dv_});
  }

  void store(Range q, std::int64_t h) {
    for (std::int64_t i = q.begin; i < q.end; ++i) {
      const Row<A>& row = rows_[i - q.begin];
      if (!row.touched) continue;
      const A inverse = static_cast<A>(1 / row.sum);
      const A* o = o_ + (i - q.begin) * dv_;
      A* to = &call_.args[3].at<A>(i, h);
      for (std::int64_t c = 0; c < dv_; ++c) to[c] = o[c] * inverse;
      const double log = static_cast<double>(row.top) + std::log2(row.sum);
      call_.args[4].at<A>(h, i) = static_cast<A>(log * std::numbers::ln2);
    }
  }

  A* score(Range q, std::int64_t i) const { return s_ + (i - q.begin) * B::stride; }

  const ops::Call& call_;
  const std::int64_t kh_;
  const Progress& progress_;
  const std::int64_t d_ = call_.args[1].shape[2], dv_ = call_.args[2].shape[2];
  const double cap_ = call_.attributes.softcap;
  A *k_ = nullptr, *v_ = nullptr;                 // [n, d], [n, dv] of this head
  A *q_ = nullptr, *o_ = nullptr, *s_ = nullptr;  // [rows, d], [rows, dv], [rows, stride]
  std::array<Row<A>, B::rows> rows_;
  std::vector<Range> keys_;
};

}  // namespace

void attention_forward(const ops::Call& call) {
  const Progress progress(call);
  ops::visit_dtype(call.args[0].dtype, [&]<class T>(T) {
    every_key_head("attn.forward", call.args[1].shape[1],
                   [&](std::int64_t h) { ForwardHead<T>(call, h, progress).run(); });
  });
}

}  // namespace tessera::kernels::portable

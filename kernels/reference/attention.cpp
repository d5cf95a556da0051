// SPDX-License-Identifier: Apache-2.0
// Attention of one tile, row by row (attention brief 1.1 to 1.3). A row first lists its visible
// keys and then touches nothing else, so masked rows of K, V, Q and dO may hold anything.
#include <algorithm>
#include <vector>

#include "kernels/reference/operators.hpp"
#include "ops/visit.hpp"

namespace tessera::kernels::reference {
namespace {

std::vector<std::int64_t> visible_keys(std::span<const ops::Band> mask, std::int64_t q) {
  std::vector<std::int64_t> keys;
  for (const ops::Band& band : mask) {
    const Range r = band.keys_of(q);
    for (std::int64_t k = r.begin; k < r.end; ++k) keys.push_back(k);
  }
  return keys;
}

template <class T>
auto dot(const TensorRef& x, std::int64_t i, std::int64_t hx, const TensorRef& y, std::int64_t j,
         std::int64_t hy) {
  using A = ops::Accumulate<T>;
  A sum = 0;
  for (std::int64_t c = 0; c < x.shape[2]; ++c) {
    sum += static_cast<A>(x.at<T>(i, hx, c)) * static_cast<A>(y.at<T>(j, hy, c));
  }
  return sum;
}

template <class T, class A = ops::Accumulate<T>>
A logit(const ops::Call& call, std::int64_t i, std::int64_t h, std::int64_t j, std::int64_t hk) {
  const A x =
      static_cast<A>(call.attributes.scale) * dot<T>(call.args[0], i, h, call.args[1], j, hk);
  const A cap = static_cast<A>(call.attributes.softcap);
  return cap > 0 ? cap * std::tanh(x / cap) : x;
}

template <class T>
void forward_row(const ops::Call& call, std::int64_t i, std::int64_t h) {
  using A = ops::Accumulate<T>;
  const TensorRef &k = call.args[1], &v = call.args[2], &o = call.args[3], &lse = call.args[4];
  const std::int64_t hk = h / (call.args[0].shape[1] / k.shape[1]), dv = v.shape[2];
  const std::vector<std::int64_t> keys = visible_keys(call.attributes.mask, i);
  if (keys.empty()) return;

  std::vector<A> s;
  A top = -std::numeric_limits<A>::infinity();
  for (const std::int64_t j : keys) {
    s.push_back(logit<T>(call, i, h, j, hk));
    top = std::max(top, s.back());
  }
  const A empty = -std::numeric_limits<A>::infinity();
  if (std::all_of(s.begin(), s.end(), [=](A x) { return x == empty; })) return;  // no weight
  A sum = 0;
  std::vector<A> part(dv, A(0));
  for (std::size_t x = 0; x < keys.size(); ++x) {
    const A p = std::exp(s[x] - top);
    sum += p;
    for (std::int64_t c = 0; c < dv; ++c) part[c] += p * static_cast<A>(v.at<T>(keys[x], hk, c));
  }
  for (A& x : part) x /= sum;
  merge_row(dv, part.data(), top + std::log(sum), &o.at<A>(i, h), lse.at<A>(h, i));
}

template <class T>
void backward_row(const ops::Call& call, std::int64_t i, std::int64_t h) {
  using A = ops::Accumulate<T>;
  const auto& a = call.args;
  const TensorRef &q = a[0], &k = a[1], &v = a[2], &go = a[3], &dq = a[6], &dk = a[7], &dv = a[8];
  const A lse = a[4].at<A>(h, i);
  const std::int64_t hk = h / (q.shape[1] / k.shape[1]);
  const A scale = static_cast<A>(call.attributes.scale);
  const A cap = static_cast<A>(call.attributes.softcap);
  if (lse == -std::numeric_limits<A>::infinity()) return;  // an empty row has no gradient

  for (const std::int64_t j : visible_keys(call.attributes.mask, i)) {
    const A s = logit<T>(call, i, h, j, hk);
    const A p = std::exp(s - lse);
    A ds = p * (dot<T>(go, i, h, v, j, hk) - a[5].at<A>(h, i));
    if (cap > 0) ds *= 1 - (s / cap) * (s / cap);
    for (std::int64_t c = 0; c < v.shape[2]; ++c) {
      dv.at<A>(j, hk, c) += p * static_cast<A>(go.at<T>(i, h, c));
    }
    for (std::int64_t c = 0; c < q.shape[2]; ++c) {
      dq.at<A>(i, h, c) += scale * ds * static_cast<A>(k.at<T>(j, hk, c));
      dk.at<A>(j, hk, c) += scale * ds * static_cast<A>(q.at<T>(i, h, c));
    }
  }
}

template <class Row>
void every_row(const ops::Call& call, Row row) {
  const TensorRef& q = call.args[0];
  for (std::int64_t h = 0; h < q.shape[1]; ++h) {
    for (std::int64_t i = 0; i < q.shape[0]; ++i) {
      row(i, h);
      if (call.progress && i % 16 == 0) call.progress();
    }
  }
}

}  // namespace

void attention_forward(const ops::Call& call) {
  ops::visit_dtype(call.args[0].dtype, [&]<class T>(T) {
    every_row(call, [&](std::int64_t i, std::int64_t h) { forward_row<T>(call, i, h); });
  });
}

void attention_backward(const ops::Call& call) {
  ops::visit_dtype(call.args[0].dtype, [&]<class T>(T) {
    every_row(call, [&](std::int64_t i, std::int64_t h) { backward_row<T>(call, i, h); });
  });
}

}  // namespace tessera::kernels::reference

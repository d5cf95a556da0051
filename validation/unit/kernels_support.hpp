// SPDX-License-Identifier: Apache-2.0
// What the kernel tests share: arrays with any strides, one attention problem with its tensors,
// calls to a named backend, and random masks of disjoint bands.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/kokkos/register.hpp"
#include "kernels/reference/register.hpp"
#include "ops/registry.hpp"
#include "ops/visit.hpp"

namespace tessera::testing {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();
inline constexpr std::int64_t open = ops::Band::unbounded;

/// A tensor that owns its memory; `gap` elements of NaN follow every head and every token, so that
/// a kernel that reads or needs dense data shows.
class Array {
 public:
  Array() = default;
  Array(DType dtype, std::array<std::int64_t, 3> shape, std::int64_t gap = 0) {
    const bool matrix = shape[2] == 1;  // statistics [head, token]: last used dimension is 1
    const std::int64_t s1 = matrix ? 1 : shape[2] + gap, s0 = shape[1] * s1 + gap;
    bytes_.resize(static_cast<std::size_t>(shape[0] * s0 * size_of(dtype)) + 64);
    ref_ = {nullptr, dtype, Space::host, shape, {s0, s1, 1}};
    ops::visit_dtype(dtype, [&]<class T>(T) {
      T* x = reinterpret_cast<T*>(bytes_.data());
      for (std::int64_t i = 0; i < shape[0] * s0; ++i) x[i] = T(std::nanf(""));
    });
    fill(0);
  }

  TensorRef ref() const {
    TensorRef r = ref_;
    r.data = const_cast<std::byte*>(bytes_.data());
    return r;
  }
  const std::array<std::int64_t, 3>& shape() const { return ref_.shape; }
  DType dtype() const { return ref_.dtype; }

  double get(std::int64_t i, std::int64_t j = 0, std::int64_t k = 0) const {
    double x = 0;
    ops::visit_dtype(ref_.dtype,
                     [&]<class T>(T) { x = static_cast<double>(ref().at<T>(i, j, k)); });
    return x;
  }
  void set(double x, std::int64_t i, std::int64_t j = 0, std::int64_t k = 0) {
    ops::visit_dtype(ref_.dtype, [&]<class T>(T) { ref().at<T>(i, j, k) = element_cast<T>(x); });
  }
  template <class F>
  void each(F f) const {
    for (std::int64_t i = 0; i < ref_.shape[0]; ++i) {
      for (std::int64_t j = 0; j < ref_.shape[1]; ++j) {
        for (std::int64_t k = 0; k < ref_.shape[2]; ++k) f(i, j, k);
      }
    }
  }
  void fill(double x) {
    each([&](auto i, auto j, auto k) { set(x, i, j, k); });
  }
  void randomise(std::mt19937_64& rng, double size = 1) {
    std::normal_distribution<double> normal(0, size);
    each([&](auto i, auto j, auto k) { set(normal(rng), i, j, k); });
  }
  /// Same values in another type, dense.
  Array as(DType dtype) const {
    Array out(dtype, ref_.shape);
    each([&](auto i, auto j, auto k) { out.set(get(i, j, k), i, j, k); });
    return out;
  }
  bool same_bits(const Array& o) const { return bytes_ == o.bytes_; }

 private:
  std::vector<std::byte> bytes_;
  TensorRef ref_;
};

/// Largest absolute difference; infinite if one side is NaN or infinite where the other is not.
inline double distance(const Array& x, const Array& y) {
  double most = 0;
  x.each([&](auto i, auto j, auto k) {
    const double a = x.get(i, j, k), b = y.get(i, j, k);
    if (a == b || (std::isnan(a) && std::isnan(b))) return;
    const double gap = std::abs(a - b);
    most = std::isnan(gap) ? infinity : std::max(most, gap);
  });
  return most;
}

inline double largest(const Array& x) {
  double most = 0;
  x.each([&](auto i, auto j, auto k) {
    const double a = std::abs(x.get(i, j, k));
    if (std::isfinite(a)) most = std::max(most, a);
  });
  return most;
}

inline bool all_finite(const Array& x) {
  bool ok = true;
  x.each([&](auto i, auto j, auto k) { ok = ok && std::isfinite(x.get(i, j, k)); });
  return ok;
}

/// Calls to one backend only.
class Backend {
 public:
  explicit Backend(const std::string& name) : name_(name) {
    name == "reference" ? kernels::register_reference(registry_)
                        : kernels::register_kokkos(registry_);
  }
  void run(std::string_view op, std::vector<TensorRef> args, ops::Attributes attributes = {},
           std::function<void()> progress = {}) const {
    registry_.run({op, std::move(args), attributes, std::move(progress)});
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  ops::Registry registry_;
};

struct Shape {
  std::int64_t m = 1, n = 1, hq = 1, hk = 1, d = 1, dv = 1;
};

/// All tensors of one attention tile; state (o, lse) starts at the identity (0, -inf).
struct Problem {
  Array q, k, v, go, o, lse, delta, dq, dk, dv;
  std::vector<ops::Band> mask;
  double scale = 1, softcap = 0;

  Problem(DType t, const Shape& s, std::vector<ops::Band> bands, std::int64_t gap = 0)
      : q(t, {s.m, s.hq, s.d}, gap),
        k(t, {s.n, s.hk, s.d}, gap),
        v(t, {s.n, s.hk, s.dv}, gap),
        go(t, {s.m, s.hq, s.dv}, gap),
        o(accumulate_type(t), {s.m, s.hq, s.dv}, gap),
        lse(accumulate_type(t), {s.hq, s.m, 1}, gap),
        delta(accumulate_type(t), {s.hq, s.m, 1}, gap),
        dq(accumulate_type(t), {s.m, s.hq, s.d}, gap),
        dk(accumulate_type(t), {s.n, s.hk, s.d}, gap),
        dv(accumulate_type(t), {s.n, s.hk, s.dv}, gap),
        mask(std::move(bands)),
        scale(1 / std::sqrt(static_cast<double>(s.d))) {
    lse.fill(-infinity);
  }
  void randomise(std::mt19937_64& rng) {
    for (Array* x : {&q, &k, &v, &go}) x->randomise(rng);
  }
  /// The same problem and state in f64: input of the oracle.
  Problem oracle() const {
    Problem p = *this;
    for (Array* x : {&p.q, &p.k, &p.v, &p.go, &p.o, &p.lse, &p.delta, &p.dq, &p.dk, &p.dv}) {
      *x = x->as(DType::f64);
    }
    return p;
  }
  ops::Attributes attributes() const { return {mask, scale, softcap}; }
  void forward(const Backend& b) {
    b.run("attention.forward", {q.ref(), k.ref(), v.ref(), o.ref(), lse.ref()}, attributes());
  }
  void make_delta(const Backend& b) { b.run("attention.delta", {o.ref(), go.ref(), delta.ref()}); }
  void backward(const Backend& b) {
    b.run(
        "attention.backward",
        {q.ref(), k.ref(), v.ref(), go.ref(), lse.ref(), delta.ref(), dq.ref(), dk.ref(), dv.ref()},
        attributes());
  }
  void both(const Backend& b) {
    forward(b);
    make_delta(b);
    backward(b);
  }
};

/// Bands in the rectangles of a random grid: disjoint, several per row and column, some empty.
inline std::vector<ops::Band> random_mask(std::mt19937_64& rng, std::int64_t m, std::int64_t n) {
  const auto draw = [&](std::int64_t a, std::int64_t b) {
    return std::uniform_int_distribution<std::int64_t>(a, b)(rng);
  };
  const auto cuts = [&](std::int64_t size) {
    std::vector<std::int64_t> c{0, size};
    for (std::int64_t i = draw(0, 3); i > 0; --i) c.push_back(draw(0, size));
    std::sort(c.begin(), c.end());
    return c;
  };
  std::vector<ops::Band> mask;
  const auto rows = cuts(m), keys = cuts(n);
  for (std::size_t a = 0; a + 1 < rows.size(); ++a) {
    for (std::size_t b = 0; b + 1 < keys.size(); ++b) {
      const std::int64_t kind = draw(0, 5), low = draw(-m, n);
      if (kind == 0) continue;
      if (kind == 5) {  // a single diagonal
        mask.push_back({rows[a], rows[a + 1], keys[b], keys[b + 1], low, low});
        continue;
      }
      mask.push_back({rows[a], rows[a + 1], keys[b], keys[b + 1], kind & 1 ? -open : low,
                      kind & 2 ? open : low + draw(-2, n)});
    }
  }
  std::shuffle(mask.begin(), mask.end(), rng);
  return mask;
}

/// Up to `longest` tokens and `widest` columns, odd ones too, with gaps between rows; not filled.
inline Problem problem_of_any_shape(std::mt19937_64& rng, DType t, int longest, int widest) {
  const auto draw = [&](int a, int b) { return std::uniform_int_distribution(a, b)(rng); };
  const int hk = draw(1, 2), m = draw(1, longest), n = draw(1, longest);
  return Problem(t, {m, n, hk * draw(1, 3), hk, draw(1, widest), draw(1, widest)},
                 random_mask(rng, m, n), draw(0, 3));
}

/// The problem of the first m queries alone.
inline Problem of_first_queries(const Problem& p, std::int64_t m) {
  const auto& [n, hk, d] = p.k.shape();
  Problem out(p.q.dtype(), {m, n, p.q.shape()[1], hk, d, p.v.shape()[2]}, p.mask);
  const auto copy = [](const Array& from, Array& to) {
    to.each([&](auto i, auto h, auto c) { to.set(from.get(i, h, c), i, h, c); });
  };
  copy(p.q, out.q), copy(p.k, out.k), copy(p.v, out.v), copy(p.go, out.go);
  return out;
}

inline std::int64_t visible_pairs(std::span<const ops::Band> mask, std::int64_t rows) {
  std::int64_t pairs = 0;
  for (const ops::Band& b : mask) {
    for (std::int64_t q = 0; q < rows; ++q) pairs += b.keys_of(q).size();
  }
  return pairs;
}

inline bool row_sees(std::span<const ops::Band> mask, std::int64_t q) {
  return std::any_of(mask.begin(), mask.end(), [&](auto& b) { return !b.keys_of(q).empty(); });
}

inline bool key_seen(std::span<const ops::Band> mask, std::int64_t rows, std::int64_t k) {
  for (std::int64_t q = 0; q < rows; ++q) {
    for (const ops::Band& b : mask) {
      const Range r = b.keys_of(q);
      if (r.begin <= k && k < r.end) return true;
    }
  }
  return false;
}

/// The bands as seen from a tile whose first query is `q.begin` and first key `k.begin`.
inline std::vector<ops::Band> tile_of(std::span<const ops::Band> mask, Range q, Range k) {
  std::vector<ops::Band> out;
  const std::int64_t shift = q.begin - k.begin;
  for (const ops::Band& b : mask) {
    ops::Band t{std::max(b.q0, q.begin) - q.begin,    std::min(b.q1, q.end) - q.begin,
                std::max(b.k0, k.begin) - k.begin,    std::min(b.k1, k.end) - k.begin,
                b.lo <= -open ? -open : b.lo + shift, b.hi >= open ? open : b.hi + shift};
    if (t.q0 < t.q1 && t.k0 < t.k1) out.push_back(t);
  }
  return out;
}

}  // namespace tessera::testing

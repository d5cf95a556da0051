// SPDX-License-Identifier: Apache-2.0
// 2^t as straight-line code that the compiler vectorises, and the row loops built on it. Softmax
// works in base 2: the factor log2(e) rides on the scale of Q K^T for free.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <numbers>

namespace tessera::kernels::portable {

template <class A>
struct Exp2;
template <>
struct Exp2<float> {
  using Bits = std::uint32_t;  // unsigned: out of range t wraps, and is discarded
  static constexpr int degree = 7, mantissa = 23;
  static constexpr float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr float lowest = -120.0f;     // below: 0, which keeps denormals out
};
template <>
struct Exp2<double> {
  using Bits = std::uint64_t;
  static constexpr int degree = 13, mantissa = 52;
  static constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double lowest = -1000.0;
};

/// Taylor coefficients of 2^f = sum (f ln 2)^k / k!; for |f| <= 1/2 the rest is below half an ulp.
template <class A>
constexpr auto exp2_coefficients() {
  std::array<A, Exp2<A>::degree + 1> c{};
  double term = 1;
  for (int k = 0; k <= Exp2<A>::degree; ++k) {
    c[k] = static_cast<A>(term);
    term *= std::numbers::ln2 / (k + 1);
  }
  return c;
}

/// 2^t for t up to about 100; 0 below Exp2::lowest and for -inf; NaN stays NaN.
template <class A>
inline A exp2_fast(A t) {
  using E = Exp2<A>;
  constexpr auto c = exp2_coefficients<A>();
  const A z = t + E::magic;
  const A f = t - (z - E::magic);
  A p = c[E::degree];
#pragma GCC unroll 16
  for (int k = E::degree - 1; k >= 0; --k) p = p * f + c[k];
  using Bits = typename E::Bits;
  const Bits n = std::bit_cast<Bits>(z) << E::mantissa;
  const A result = std::bit_cast<A>(std::bit_cast<Bits>(p) + n);
  return t < E::lowest ? A(0) : result;
}

/// tanh(x) = -w / (2 + w) with w = e^(-2|x|) - 1, which near 0 is the series without its leading 1,
/// so that small x keep their relative accuracy. NaN stays NaN.
template <class A>
inline A tanh_fast(A x) {
  constexpr auto c = exp2_coefficients<A>();
  const A t = (x < 0 ? x : -x) * static_cast<A>(2 * std::numbers::log2e);
  A q = c[Exp2<A>::degree];
#pragma GCC unroll 16
  for (int k = Exp2<A>::degree - 1; k >= 1; --k) q = q * t + c[k];
  const A far = exp2_fast(t) - 1;
  const A w = t > A(-0.5) ? q * t : far;
  const A y = -w / (2 + w);
  return x < 0 ? -y : y;
}

template <class A>
inline A row_max(const A* s, std::int64_t n, A top) {
#pragma omp simd reduction(max : top)
  for (std::int64_t j = 0; j < n; ++j) top = s[j] > top ? s[j] : top;
  return top;
}

/// s <- 2^(s - top); returns the sum.
template <class A>
inline A exp2_row(A* s, std::int64_t n, A top) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = 0; j < n; ++j) {
    const A p = exp2_fast(s[j] - top);
    s[j] = p;
    sum += p;
  }
  return sum;
}

}  // namespace tessera::kernels::portable

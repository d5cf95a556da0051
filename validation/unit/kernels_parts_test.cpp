// SPDX-License-Identifier: Apache-2.0
// Building blocks of the portable kernels: 2^t and tanh; mask geometry: pieces cover every visible
// cell once, nothing more than needed, and agree with the cell-by-cell definition of a band.
#include <gtest/gtest.h>

#include "kernels/kokkos/exp2.hpp"
#include "kernels/kokkos/mask.hpp"
#include "kernels_support.hpp"

namespace tessera::testing {
namespace {

using kernels::portable::Piece;
using kernels::portable::Rect;

bool in(const Range& r, std::int64_t x) { return r.begin <= x && x < r.end; }

TEST(kernels, visible_part_is_the_hull_of_visible_cells) {
  std::mt19937_64 rng(1);
  const auto draw = [&](int a, int b) { return std::uniform_int_distribution<int>(a, b)(rng); };
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t lo = draw(-8, 8), hi = lo + draw(-1, 6);
    const ops::Band band{draw(0, 5),
                         draw(5, 9),
                         draw(0, 5),
                         draw(5, 9),
                         draw(0, 3) ? lo : -open,
                         draw(0, 3) ? hi : open};
    const Range q{draw(0, 4), draw(4, 9)}, k{draw(0, 4), draw(4, 9)};
    Range rows{99, -1}, keys{99, -1};
    for (std::int64_t i = q.begin; i < q.end; ++i) {
      for (std::int64_t j = k.begin; j < k.end; ++j) {
        if (!in(band.keys_of(i), j)) continue;
        rows = {std::min(rows.begin, i), std::max(rows.end, i + 1)};
        keys = {std::min(keys.begin, j), std::max(keys.end, j + 1)};
      }
    }
    const Rect r = kernels::portable::visible_part(band, q, k);
    ASSERT_EQ(r.empty(), rows.end < 0);
    if (r.empty()) continue;
    ASSERT_EQ(r.q, rows);
    ASSERT_EQ(r.k, keys);
  }
}

TEST(kernels, pieces_hold_each_visible_cell_once) {
  std::mt19937_64 rng(2);
  for (int round = 0; round < 100; ++round) {
    const std::int64_t m = 1 + round % 90, n = 1 + (round * 7) % 110;
    const auto mask = random_mask(rng, m, n);
    std::vector<int> seen(m * n, 0), expected(m * n, 0);
    for (const ops::Band& b : mask) {
      for (std::int64_t q = 0; q < m; ++q) {
        for (std::int64_t k = b.keys_of(q).begin; k < b.keys_of(q).end; ++k) ++expected[q * n + k];
      }
    }
    std::vector<Range> row;
    for (const Piece& p : kernels::portable::pieces(mask, {0, m}, {0, n}, {32, 8})) {
      EXPECT_LE(p.k.size(), 32);
      EXPECT_TRUE(p.full || p.q.size() <= 8);
      for (std::int64_t q = p.q.begin; q < p.q.end; ++q) {
        kernels::portable::keys_of_row(p, q, row);
        for (const Range& r : row) {
          EXPECT_TRUE(p.k.covers(r));
          for (std::int64_t k = r.begin; k < r.end; ++k) ++seen[q * n + k];
        }
      }
    }
    EXPECT_EQ(seen, expected);
  }
}

TEST(kernels, computed_cells_of_a_causal_mask_are_near_the_visible_ones) {
  const std::int64_t n = 4096;
  const std::vector<ops::Band> causal{{0, n, 0, n, -open, 0}};
  double computed = 0;
  for (std::int64_t q = 0; q < n; q += 256) {
    for (const Piece& p : kernels::portable::pieces(causal, {q, q + 256}, {0, n}, {256, 64})) {
      computed += static_cast<double>(p.q.size() * p.k.size());
    }
  }
  EXPECT_LT(computed / static_cast<double>(visible_pairs(causal, n)), 1.02);
}

/// Largest error of `got` against `exact` over [low, high], relative to the exact value.
template <class A, class Got, class Exact>
double relative_error(A low, A high, Got got, Exact exact) {
  double most = 0;
  for (int i = 0; i <= 20000; ++i) {
    const A x = low + (high - low) * static_cast<A>(i) / A(20000);
    const double y = exact(static_cast<double>(x));
    if (y != 0) most = std::max(most, std::abs(static_cast<double>(got(x)) / y - 1));
  }
  return most;
}

TEST(kernels, exp2_and_tanh_are_accurate_to_a_few_ulp) {
  using kernels::portable::exp2_fast, kernels::portable::tanh_fast;
  const auto exp2 = [](double x) { return std::exp2(x); };
  const auto tanh = [](double x) { return std::tanh(x); };
  EXPECT_LT(relative_error<float>(-100, 3, exp2_fast<float>, exp2), 3e-7);
  EXPECT_LT(relative_error<double>(-900, 3, exp2_fast<double>, exp2), 1e-15);
  EXPECT_LT(relative_error<float>(-12, 12, tanh_fast<float>, tanh), 5e-7);
  EXPECT_LT(relative_error<float>(-1e-3f, 1e-3f, tanh_fast<float>, tanh), 5e-7);
  EXPECT_LT(relative_error<double>(-20, 20, tanh_fast<double>, tanh), 2e-15);
  EXPECT_LT(relative_error<double>(-1e-3, 1e-3, tanh_fast<double>, tanh), 2e-15);
  EXPECT_EQ(exp2_fast<float>(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(exp2_fast<float>(-1e4f), 0.0f);
  EXPECT_EQ(exp2_fast<float>(0.0f), 1.0f);
  EXPECT_TRUE(std::isnan(exp2_fast(std::nanf(""))) && std::isnan(tanh_fast(std::nanf(""))));
}

}  // namespace
}  // namespace tessera::testing

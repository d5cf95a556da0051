// SPDX-License-Identifier: Apache-2.0
// Edges of the numbers: equal, huge and one-hot logits, dominating and empty partials, empty masks,
// the error of 16-bit storage, calls of the progress function (attention brief, section 12).
#include <gtest/gtest.h>

#include "kernels_support.hpp"

namespace tessera::testing {
namespace {

class Limits : public ::testing::TestWithParam<const char*> {
 protected:
  Backend backend{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(backends, Limits, ::testing::Values("reference", "kokkos"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Limits, equal_logits_give_lse_of_logit_plus_log_count) {
  for (const DType t : all_dtypes) {
    const std::int64_t n = 600;
    Problem p(t, {n, n, 1, 1, 2, 1}, {{0, n, 0, n, -open, 0}});
    p.scale = 1;
    for (std::int64_t i = 0; i < n; ++i) {
      p.q.set(1.5, i, 0, 0), p.k.set(2.0, i, 0, 0);  // every logit is 3
      p.v.set(static_cast<double>(i % 2), i);
    }
    p.forward(backend);
    for (std::int64_t i = 0; i < n; ++i) {
      const double count = static_cast<double>(i + 1), ones = static_cast<double>((i + 1) / 2);
      EXPECT_NEAR(p.lse.get(0, i), 3 + std::log(count), t == DType::f64 ? 1e-13 : 2e-6);
      EXPECT_NEAR(p.o.get(i), ones / count, t == DType::f64 ? 1e-13 : 2e-6);
    }
  }
}

TEST_P(Limits, huge_logits_select_the_largest_key) {
  for (const DType t : all_dtypes) {
    Problem p(t, {2, 400, 1, 1, 1, 2}, {{0, 2, 0, 400}});
    p.scale = 100;
    p.q.set(100, 0), p.q.set(-100, 1);
    p.k.fill(-1);  // logits -1e4 for row 0, +1e4 for row 1
    p.k.set(1, 333);
    for (std::int64_t j = 0; j < 400; ++j) p.v.set(static_cast<double>(j % 7), j, 0, 0);
    p.v.set(5, 333, 0, 0), p.v.set(-2, 333, 0, 1);
    p.go.fill(1);
    p.both(backend);
    EXPECT_EQ(p.o.get(0, 0, 0), 5);
    EXPECT_EQ(p.o.get(0, 0, 1), -2);
    EXPECT_NEAR(p.lse.get(0, 0), 1e4, 2e-3);
    EXPECT_NEAR(p.lse.get(0, 1), 1e4 + std::log(399.0), 2e-3);
    EXPECT_TRUE(all_finite(p.dq) && all_finite(p.dk) && all_finite(p.dv));
    EXPECT_NEAR(p.dv.get(333, 0, 1), 1, 2e-3);  // one-hot: all of row 0, nothing of row 1
  }
}

TEST_P(Limits, partial_that_dominates_by_1000_is_taken_whole) {
  Problem p(DType::f32, {1, 3, 1, 1, 1, 1}, {{0, 1, 0, 3}});
  p.v.fill(9);
  p.lse.fill(1000), p.o.fill(0.125);  // the logits of the tile are 0
  p.forward(backend);
  EXPECT_FLOAT_EQ(static_cast<float>(p.o.get(0)), 0.125f);
  EXPECT_FLOAT_EQ(static_cast<float>(p.lse.get(0)), 1000.0f);
  p.lse.fill(-1000);
  p.forward(backend);
  EXPECT_FLOAT_EQ(static_cast<float>(p.o.get(0)), 9.0f);
  EXPECT_NEAR(p.lse.get(0), std::log(3.0), 1e-6);
}

TEST_P(Limits, empty_mask_leaves_every_tensor_as_it_was) {
  std::mt19937_64 rng(2);
  for (const auto& mask :
       {std::vector<ops::Band>{}, {{0, 300, 0, 300, 5, 4}}, {{0, 300, 0, 300, 400, open}}}) {
    Problem p(DType::f32, {300, 300, 2, 1, 4, 4}, mask);
    p.randomise(rng);
    for (Array* x : {&p.o, &p.lse, &p.dq, &p.dk, &p.dv}) x->randomise(rng);
    const Problem before = p;
    p.forward(backend);
    p.backward(backend);
    EXPECT_TRUE(p.o.same_bits(before.o) && p.lse.same_bits(before.lse));
    EXPECT_TRUE(p.dq.same_bits(before.dq) && p.dk.same_bits(before.dk));
    EXPECT_TRUE(p.dv.same_bits(before.dv));
  }
}

TEST_P(Limits, nan_in_a_visible_key_is_not_hidden) {
  Problem p(DType::f32, {3, 3, 1, 1, 2, 2}, {{0, 3, 0, 3, -open, 0}});
  p.k.set(nan, 2, 0, 0);
  p.forward(backend);
  EXPECT_TRUE(std::isnan(p.o.get(2)));
  EXPECT_FALSE(std::isnan(p.o.get(1)));
}

TEST_P(Limits, logits_of_minus_infinity_have_no_weight) {
  Problem p(DType::f32, {2, 3, 1, 1, 1, 1}, {{0, 2, 0, 3}});
  p.q.fill(1), p.k.fill(-infinity), p.v.fill(4);
  p.k.set(1, 2);
  p.mask = {{0, 1, 0, 2}, {1, 2, 0, 3}};  // row 0 sees only -inf, row 1 one finite logit
  p.forward(backend);
  EXPECT_EQ(p.o.get(0), 0);
  EXPECT_EQ(p.lse.get(0, 0), -infinity);
  EXPECT_EQ(p.o.get(1), 4);
  EXPECT_NEAR(p.lse.get(0, 1), 1, 1e-6);
}

TEST_P(Limits, no_queries_or_no_keys_is_no_work) {
  Problem none(DType::f32, {0, 5, 2, 1, 4, 4}, {{0, 5, 0, 5}});
  none.both(backend);
  EXPECT_EQ(largest(none.dk), 0);
  Problem keyless(DType::f32, {5, 0, 2, 1, 4, 4}, {{0, 5, 0, 0}});
  keyless.both(backend);
  EXPECT_EQ(keyless.lse.get(0, 0), -infinity);
}

/// Error of `t` against fp64 inputs that it cannot hold: at most twice that of the reference, and
/// for O at most `most`.
void check_rounding(DType t, double most) {
  const Backend reference("reference"), portable("kokkos");
  std::mt19937_64 rng(4);
  // fp64 inputs rounded to t: the oracle sees the unrounded ones.
  Problem exact(DType::f64, {300, 300, 4, 2, 64, 64}, {{0, 300, 0, 300, -open, 0}});
  exact.randomise(rng);
  Problem plain(t, {300, 300, 4, 2, 64, 64}, exact.mask);
  plain.q = exact.q.as(t), plain.k = exact.k.as(t);
  plain.v = exact.v.as(t), plain.go = exact.go.as(t);
  Problem got = plain;
  exact.both(reference);
  plain.both(reference);
  got.both(portable);
  EXPECT_LE(distance(got.o, exact.o), 2 * distance(plain.o, exact.o));
  EXPECT_LE(distance(got.dq, exact.dq), 2 * distance(plain.dq, exact.dq));
  EXPECT_LE(distance(got.dk, exact.dk), 2 * distance(plain.dk, exact.dk));
  EXPECT_LE(distance(got.dv, exact.dv), 2 * distance(plain.dv, exact.dv));
  EXPECT_LT(distance(got.o, exact.o), most);
}

TEST(kernels, error_of_16_bits_is_within_twice_that_of_the_reference) {
  check_rounding(DType::bf16, 0.05);
  check_rounding(DType::f16, 0.00625);
}

TEST(kernels, progress_is_called_between_pieces) {
  const Backend portable("kokkos");
  std::mt19937_64 rng(4);
  Problem p(DType::f32, {1024, 1024, 1, 1, 16, 16}, {{0, 1024, 0, 1024}});
  p.randomise(rng);
  int calls = 0;
  portable.run("attention.forward", {p.q.ref(), p.k.ref(), p.v.ref(), p.o.ref(), p.lse.ref()},
               p.attributes(), [&] { ++calls; });
  EXPECT_GE(calls, 8);
}

}  // namespace
}  // namespace tessera::testing

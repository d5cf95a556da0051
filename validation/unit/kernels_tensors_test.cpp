// SPDX-License-Identifier: Apache-2.0
// Bandwidth-bound operators: zero, copy, add, merge, delta, sink, reset on random shapes, strides
// and type pairs, portable against reference; and that nothing outside the tensor is written.
#include <gtest/gtest.h>

#include "kernels_support.hpp"

namespace tessera::testing {
namespace {

/// Runs `op` on copies of the arrays with both backends; the results must agree to `tolerance`.
void expect_same(const char* op, std::vector<Array> args, double tolerance) {
  std::vector<Array> other = args;
  const auto refs = [](const std::vector<Array>& list) {
    std::vector<TensorRef> out;
    for (const Array& a : list) out.push_back(a.ref());
    return out;
  };
  Backend("reference").run(op, refs(args));
  Backend("kokkos").run(op, refs(other));
  for (std::size_t i = 0; i < args.size(); ++i) {
    EXPECT_LE(distance(other[i], args[i]), tolerance) << op << " argument " << i;
    if (tolerance == 0) {
      EXPECT_TRUE(other[i].same_bits(args[i])) << op << " wrote outside argument " << i;
    }
  }
}

TEST(kernels, tensor_operators_agree_for_all_types_and_strides) {
  std::mt19937_64 rng(1);
  const std::vector<std::array<std::int64_t, 3>> shapes{{5, 3, 7}, {1, 1, 1},    {4, 9, 1},
                                                        {6, 1, 1}, {1, 4, 3},    {300, 2, 64},
                                                        {0, 3, 2}, {2, 40000, 1}};
  for (const auto& shape : shapes) {
    for (const DType x : all_dtypes) {
      for (const DType y : all_dtypes) {
        for (const std::int64_t gap : {0, 3}) {
          Array a(x, shape, gap), b(y, shape, gap ? 0 : 2);
          a.randomise(rng), b.randomise(rng);
          expect_same("tensor.copy", {a, b}, 0);
          expect_same("tensor.add", {a, b}, 0);
          if (x == y) expect_same("tensor.zero", {a}, 0);
        }
      }
    }
  }
}

/// 1 to 30 pairs of all types in one call, each of its own shape and strides.
TEST(kernels, calls_of_many_pairs_agree) {
  std::mt19937_64 rng(3);
  for (const int pairs : {1, 2, 7, 30}) {
    std::vector<Array> moved, cleared;
    for (int i = 0; i < pairs; ++i) {
      const std::array<std::int64_t, 3> shape{static_cast<std::int64_t>(rng() % 9),
                                              1 + static_cast<std::int64_t>(rng() % 4),
                                              1 + static_cast<std::int64_t>(rng() % 70)};
      for (int side = 0; side < 2; ++side) {
        moved.emplace_back(all_dtypes[rng() % 4], shape, static_cast<std::int64_t>(rng() % 3));
        moved.back().randomise(rng);
      }
      cleared.push_back(moved.back());
    }
    expect_same("tensor.copy", moved, 0);
    expect_same("tensor.add", moved, 0);
    expect_same("tensor.zero", cleared, 0);
  }
}

TEST(kernels, sums_agree_for_all_types_strides_and_numbers_of_terms) {
  std::mt19937_64 rng(4);
  const std::vector<std::array<std::int64_t, 3>> shapes{
      {5, 3, 7}, {1, 1, 1}, {6, 9, 1}, {3, 2, 600}, {0, 3, 2}};
  for (const auto& shape : shapes) {
    for (const DType x : all_dtypes) {
      for (const DType y : all_dtypes) {
        for (const std::size_t terms : {std::size_t{1}, std::size_t{3}, ops::max_terms}) {
          std::vector<Array> args;
          for (std::size_t i = 0; i < terms; ++i) args.emplace_back(x, shape, i % 3);
          args.emplace_back(y, shape, 2);
          for (Array& a : args) a.randomise(rng);
          args.back().fill(nan);  // is not read
          expect_same("tensor.sum", args, 0);
        }
      }
    }
  }
}

/// Sums are kept in f32 and rounded once: 1 + 2^-8 + 2^-8 in steps of bf16 would stay 1. And in the
/// order of the arguments: 2^24 + 1 - 2^24 is 0 in f32, 2^24 - 2^24 + 1 is 1.
TEST(kernels, a_sum_is_rounded_once_and_in_order) {
  for (const char* name : {"reference", "kokkos"}) {
    const Backend b(name);
    Array one(DType::bf16, {2, 1, 3}), small = one, y = one;
    one.fill(1), small.fill(0x1p-8);
    b.run("tensor.sum", {one.ref(), small.ref(), small.ref(), y.ref()});
    EXPECT_EQ(y.get(1, 0, 2), 1 + 0x1p-7);
    Array large(DType::f32, {2, 1, 3}), minus = large, unit = large, sum = large;
    large.fill(0x1p24), minus.fill(-0x1p24), unit.fill(1);
    b.run("tensor.sum", {large.ref(), unit.ref(), minus.ref(), sum.ref()});
    EXPECT_EQ(sum.get(0, 0, 1), 0);
    b.run("tensor.sum", {large.ref(), minus.ref(), unit.ref(), sum.ref()});
    EXPECT_EQ(sum.get(0, 0, 1), 1);
  }
}

TEST(kernels, copy_converts_and_zero_clears) {
  for (const char* name : {"reference", "kokkos"}) {
    const Backend b(name);
    Array wide(DType::f64, {2, 2, 2}), narrow(DType::bf16, {2, 2, 2}, 1);
    wide.fill(1.00390625);  // 1 + 2^-8 lies between two bf16 numbers: even is 1
    b.run("tensor.copy", {wide.ref(), narrow.ref()});
    EXPECT_EQ(narrow.get(1, 1, 1), 1.0);
    b.run("tensor.add", {narrow.ref(), wide.ref()});
    EXPECT_EQ(wide.get(0, 1, 0), 2.00390625);
    b.run("tensor.zero", {wide.ref()});
    EXPECT_EQ(largest(wide), 0);
    Array half(DType::f16, {2, 2, 2}, 1);
    wide.fill(1.00048828125);  // 1 + 2^-11 lies between two f16 numbers: even is 1
    b.run("tensor.copy", {wide.ref(), half.ref()});
    EXPECT_EQ(half.get(1, 1, 1), 1.0);
    wide.fill(65520);  // half way from the largest number to the next power of two
    b.run("tensor.copy", {wide.ref(), half.ref()});
    EXPECT_EQ(half.get(0, 1, 1), infinity);
  }
}

TEST(kernels, statistics_operators_agree) {
  std::mt19937_64 rng(2);
  for (const DType a : {DType::f64, DType::f32}) {
    const double tolerance = a == DType::f64 ? 1e-13 : 2e-5;
    for (const std::int64_t gap : {0, 5}) {
      Array o_in(a, {40, 3, 16}, gap), lse_in(a, {3, 40, 1}, gap), o = o_in, lse = lse_in;
      Array sink(a, {3, 1, 1}), dsink(a, {3, 1, 1}), delta(a, {3, 40, 1}, gap);
      for (Array* x : {&o_in, &lse_in, &o, &lse, &sink, &dsink, &delta}) x->randomise(rng, 2);
      for (std::int64_t i = 0; i < 40; i += 3) lse_in.set(-infinity, 1, i);
      for (std::int64_t i = 0; i < 40; i += 2) {
        lse.set(-infinity, 1, i);
        for (std::int64_t c = 0; c < 16; ++c) o.set(0, i, 1, c);
      }
      expect_same("attention.merge", {o_in, lse_in, o, lse}, tolerance);
      expect_same("attention.sink", {sink, o, lse}, tolerance);
      expect_same("attention.sink_grad", {sink, lse, delta, dsink}, 100 * tolerance);
      expect_same("attention.reset", {o, lse}, 0);
      expect_same("attention.delta", {o, o_in, delta}, tolerance);
    }
  }
  for (const DType x : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType y : {DType::f32, DType::bf16, DType::f16}) {
      Array o(x, {20, 2, 33}), go(y, {20, 2, 33}, 2), delta(DType::f32, {2, 20, 1});
      o.randomise(rng), go.randomise(rng);
      expect_same("attention.delta", {o, go, delta}, 2e-5);
    }
  }
}

TEST(kernels, merge_does_not_read_a_side_of_weight_zero) {
  for (const char* name : {"reference", "kokkos"}) {
    Array o_in(DType::f32, {1, 1, 2}), lse_in(DType::f32, {1, 1, 1}), o = o_in, lse = lse_in;
    o_in.fill(nan), lse_in.fill(-infinity), o.fill(3), lse.fill(1);
    Backend(name).run("attention.merge", {o_in.ref(), lse_in.ref(), o.ref(), lse.ref()});
    EXPECT_EQ(o.get(0, 0, 1), 3);
    EXPECT_EQ(lse.get(0), 1);
    std::swap(o, o_in), std::swap(lse, lse_in);
    Backend(name).run("attention.merge", {o_in.ref(), lse_in.ref(), o.ref(), lse.ref()});
    EXPECT_EQ(o.get(0, 0, 1), 3);
    EXPECT_EQ(lse.get(0), 1);
  }
}

TEST(kernels, sink_takes_its_share_of_the_denominator) {
  for (const char* name : {"reference", "kokkos"}) {
    const Backend b(name);
    Array sink(DType::f64, {1, 1, 1}), o(DType::f64, {2, 1, 1}), lse(DType::f64, {1, 2, 1});
    sink.fill(std::log(3.0));
    o.set(8, 0), lse.set(0, 0, 0), lse.set(-infinity, 0, 1);
    b.run("attention.sink", {sink.ref(), o.ref(), lse.ref()});
    EXPECT_NEAR(o.get(0), 2.0, 1e-14);  // weight 1 of 1 + 3
    EXPECT_NEAR(lse.get(0, 0), std::log(4.0), 1e-15);
    EXPECT_EQ(o.get(1), 0);  // an empty row has the sink alone
    EXPECT_NEAR(lse.get(0, 1), std::log(3.0), 1e-15);
  }
}

}  // namespace
}  // namespace tessera::testing

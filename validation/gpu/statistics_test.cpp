// SPDX-License-Identifier: Apache-2.0
// Merge, Delta, sink, reset and the tensor operators on the device against the reference on the
// host: same inputs, gaps of NaN between rows, and the gaps untouched afterwards.
#include "validation/gpu/device.hpp"

namespace tessera::testing {
namespace {

constexpr std::array<std::int64_t, 3> shapes[] = {{1, 1, 1},     {33, 3, 128}, {128, 8, 128},
                                                  {57, 4, 20},   {40, 2, 300}, {3, 1, 64},
                                                  {130, 17, 33}, {70, 9, 64}};

std::vector<Array*> pointers(std::vector<Array>& x) {
  std::vector<Array*> p;
  for (Array& a : x) p.push_back(&a);
  return p;
}

/// Runs `op` of one backend and of the reference on copies of the arrays: the outputs must agree
/// within `bound` of the largest number, all else must stay as it was.
void compare_one(const std::string& backend, std::string_view op, std::vector<Array> arrays,
                 const std::vector<std::size_t>& outs, double bound) {
  SCOPED_TRACE(backend);
  Runner device(backend), reference("reference");
  std::vector<Array> host = arrays;
  device.run(op, pointers(arrays));
  reference.run(op, pointers(host));
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const bool is_out = std::find(outs.begin(), outs.end(), i) != outs.end();
    if (!is_out) {
      EXPECT_TRUE(arrays[i].same_bits(host[i])) << op << ", input " << i << " changed";
      continue;
    }
    const auto shape = arrays[i].shape();
    EXPECT_LE(distance(arrays[i], host[i]), bound * std::max(1.0, largest(host[i])))
        << op << ", argument " << i << " " << name_of(arrays[i].dtype()) << " [" << shape[0] << ","
        << shape[1] << "," << shape[2] << "]";
    arrays[i].fill(0);
    host[i].fill(0);
    EXPECT_TRUE(arrays[i].same_bits(host[i])) << op << " wrote between the rows of " << i;
  }
}

/// In every backend that takes the call.
void compare(std::string_view op, std::vector<Array> arrays, const std::vector<std::size_t>& outs,
             double bound) {
  const auto backends = Runner::backends(op, pointers(arrays));
  EXPECT_FALSE(backends.empty()) << op;
  for (const std::string& backend : backends) compare_one(backend, op, arrays, outs, bound);
}

double bound_of(DType t) { return t == DType::f64 ? 1e-14 : t == DType::f32 ? 4e-6 : 1e-2; }

Array random(DType t, std::array<std::int64_t, 3> shape, std::int64_t gap, std::mt19937_64& rng) {
  Array x(t, shape, gap);
  x.randomise(rng);
  return x;
}

/// Random statistics [head, token], one in four -infinity.
Array random_lse(DType t, std::array<std::int64_t, 3> shape, std::int64_t gap,
                 std::mt19937_64& rng) {
  Array x = random(t, shape, gap, rng);
  x.each([&](auto i, auto j, auto k) {
    if (rng() % 4 == 0) x.set(-infinity, i, j, k);
  });
  return x;
}

TEST(gpu_statistics, merge_delta_sink_reset_match_the_reference) {
  std::mt19937_64 rng(31);
  for (const auto& s : shapes) {
    for (const DType t : {DType::f32, DType::f64}) {
      for (const std::int64_t gap : {0, 3}) {
        const std::array<std::int64_t, 3> stats{s[1], s[0], 1}, heads{s[1], 1, 1};
        const auto o = [&] { return random(t, s, gap, rng); };
        const auto lse = [&] { return random_lse(t, stats, gap, rng); };
        compare("attention.merge", {o(), lse(), o(), lse()}, {2, 3}, bound_of(t));
        compare("attention.sink", {random_lse(t, heads, 0, rng), o(), lse()}, {1, 2}, bound_of(t));
        compare(
            "attention.sink_grad",
            {random(t, heads, 0, rng), lse(), random(t, stats, gap, rng), random(t, heads, 0, rng)},
            {3}, 20 * bound_of(t));
        compare("attention.reset", {o(), lse()}, {0, 1}, 0);
        compare("attention.delta", {o(), o(), random(t, stats, gap, rng)}, {2}, 10 * bound_of(t));
      }
    }
    const std::array<std::int64_t, 3> stats{s[1], s[0], 1};
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      for (const DType grad : {DType::bf16, DType::f16}) {
        compare("attention.delta",
                {random(t, s, 0, rng), random(grad, s, 0, rng), random(DType::f32, stats, 0, rng)},
                {2}, 4e-5);
      }
    }
  }
}

TEST(gpu_statistics, merges_are_rounded_as_copies_of_them) {
  Runner device("cuda");
  std::mt19937_64 rng(34);
  for (const auto& s : shapes) {
    for (const DType t : {DType::bf16, DType::f16}) {
      for (const std::int64_t gap : {0, 3}) {
        const std::array<std::int64_t, 3> stats{s[1], s[0], 1};
        std::vector<Array> merged{
            random(DType::f32, s, gap, rng), random_lse(DType::f32, stats, gap, rng),
            random(DType::f32, s, gap, rng), random_lse(DType::f32, stats, gap, rng)};
        std::vector<Array> stored = merged;
        Array want(t, s, gap), out = want;
        device.run("attention.merge", pointers(merged));
        want.each([&](auto i, auto j, auto k) { want.set(merged[2].get(i, j, k), i, j, k); });
        device.run("attention.merge", pointers(stored), {}, &out);
        EXPECT_TRUE(out.same_bits(want)) << name_of(t) << ", " << distance(out, want);
        EXPECT_TRUE(stored[3].same_bits(merged[3])) << name_of(t);
      }
    }
  }
}

TEST(gpu_statistics, a_side_of_weight_zero_is_not_read) {
  Runner device("cuda");
  Array o_in(DType::f32, {64, 2, 128}), lse_in(DType::f32, {2, 64, 1});
  Array o(DType::f32, {64, 2, 128}), lse(DType::f32, {2, 64, 1});
  std::mt19937_64 rng(32);
  o_in.fill(nan);
  lse_in.fill(-infinity);
  o.randomise(rng);
  lse.fill(1);
  const Array before = o;
  device.run("attention.merge", {&o_in, &lse_in, &o, &lse});
  EXPECT_TRUE(o.same_bits(before));
  o.fill(nan);
  lse.fill(-infinity);
  o_in.fill(3);
  lse_in.fill(2);
  device.run("attention.merge", {&o_in, &lse_in, &o, &lse});
  EXPECT_TRUE(o.same_bits(o_in));
  EXPECT_TRUE(lse.same_bits(lse_in));
}

TEST(gpu_statistics, zero_copy_add_match_for_all_types_and_strides) {
  std::mt19937_64 rng(33);
  for (const auto& s : shapes) {
    for (const DType x : all_dtypes) {
      for (const std::int64_t gap : {0, 5, 8}) {
        compare("tensor.zero", {random(x, s, gap, rng)}, {0}, 0);
        for (const DType y : all_dtypes) {
          compare("tensor.copy", {random(x, s, gap, rng), random(y, s, 0, rng)}, {1}, 0);
          compare("tensor.copy", {random(x, s, 0, rng), random(y, s, gap, rng)}, {1}, 0);
          compare("tensor.add", {random(x, s, gap, rng), random(y, s, gap, rng)}, {1}, 0);
        }
      }
    }
  }
}

/// Up to 60 pairs in one call, which are more than one launch takes: each of its own types, shape
/// and strides, large and small, so that blocks meet the end of a pair anywhere.
TEST(gpu_statistics, calls_of_many_pairs_match) {
  std::mt19937_64 rng(34);
  const auto upto = [&](std::int64_t n) { return 1 + static_cast<std::int64_t>(rng() % n); };
  constexpr std::int64_t dims[] = {1, 7, 8, 33, 64, 128, 200};
  for (const int pairs : {1, 2, 3, 24, 25, 60}) {
    std::vector<Array> moved, cleared;
    std::vector<std::size_t> outs, all;
    for (int i = 0; i < pairs; ++i) {
      std::array<std::int64_t, 3> shape{upto(i % 5 ? 40 : 400), upto(9), dims[rng() % 7]};
      if (i % 11 == 7) shape[0] = 0;
      for (int side = 0; side < 2; ++side)
        moved.push_back(random(all_dtypes[rng() % 4], shape, i % 3 ? 8 * (rng() % 2) : 3, rng));
      outs.push_back(moved.size() - 1);
      all.push_back(cleared.size());
      cleared.push_back(moved.back());
    }
    compare("tensor.copy", moved, outs, 0);
    compare("tensor.add", moved, outs, 0);
    compare("tensor.zero", cleared, all, 0);
  }
}

TEST(gpu_statistics, sums_match_for_all_types_strides_and_numbers_of_terms) {
  std::mt19937_64 rng(35);
  for (const auto& s : shapes) {
    for (const DType x : all_dtypes) {
      for (const DType y : all_dtypes) {
        for (const std::size_t terms : {std::size_t{1}, std::size_t{2}, std::size_t{7}}) {
          std::vector<Array> args;
          for (std::size_t i = 0; i < terms; ++i) args.push_back(random(x, s, i % 2 * 8, rng));
          args.emplace_back(y, s, terms % 3);
          args.back().fill(nan);  // is not read
          compare("tensor.sum", args, {terms}, 0);
        }
      }
    }
  }
  std::vector<Array> most;
  for (std::size_t i = 0; i <= ops::max_terms; ++i)
    most.push_back(random(DType::f32, {50, 3, 64}, i % 3 * 4, rng));
  compare("tensor.sum", most, {ops::max_terms}, 0);
}

/// Slices of heads out of larger tensors, as plans cut them: rows that neither side has dense.
TEST(gpu_statistics, slices_of_heads_and_tokens_match) {
  std::mt19937_64 rng(36);
  Runner device("cuda");
  for (const std::int64_t first : {0, 1, 3}) {
    for (const DType y : {DType::f32, DType::bf16}) {
      Array whole = random(DType::bf16, {96, 8, 64}, 0, rng), out(y, {96, 8, 64});
      const OnDevice from(device.budget(), whole);
      OnDevice to(device.budget(), out);
      const Range tokens{first, 90}, heads{first, first + 4};
      device.registry().run({"tensor.copy",
                             {from.ref().slice(tokens, heads), to.ref().slice(tokens, heads)},
                             {},
                             {}});
      to.fetch();
      out.each([&](auto i, auto j, auto k) {
        const bool inside = i >= first && i < 90 && j >= first && j < first + 4;
        EXPECT_EQ(out.get(i, j, k), inside ? whole.get(i, j, k) : 0) << i << " " << j << " " << k;
      });
    }
  }
}

/// As on the host: ties to even, subnormals, infinity from half way to the next power of two.
TEST(gpu_statistics, f16_ends_as_on_the_host) {
  Array wide(DType::f32, {8, 1, 1}), half(DType::f16, {8, 1, 1});
  const double values[] = {65504, 65519, 65520, -1e30, 0x1p-24, 0x1p-25, 0x1.8p-24, infinity};
  for (int i = 0; i < 8; ++i) wide.set(values[i], i);
  compare("tensor.copy", {wide, half}, {1}, 0);
  Array back(DType::f32, {8, 1, 1});
  Runner device("cuda");
  device.run("tensor.copy", {&wide, &half});
  device.run("tensor.copy", {&half, &back});
  EXPECT_EQ(back.get(1), 65504);
  EXPECT_EQ(back.get(2), infinity);
  EXPECT_EQ(back.get(5), 0);
  EXPECT_EQ(back.get(6), 0x1p-23);
}

}  // namespace
}  // namespace tessera::testing

// SPDX-License-Identifier: Apache-2.0
// Merge, Delta, sink, reset and the tensor operators on the device against the reference on the
// host: same inputs, gaps of NaN between rows, and the gaps untouched afterwards.
#include "validation/gpu/device.hpp"

namespace tessera::testing {
namespace {

constexpr std::array<std::int64_t, 3> shapes[] = {
    {1, 1, 1}, {33, 3, 128}, {128, 8, 128}, {57, 4, 20}, {40, 2, 300}};

/// Runs `op` on device and host copies of the arrays and returns the largest relative difference
/// of array `out`, or infinity if the gaps of any array changed.
void compare(std::string_view op, std::vector<Array> arrays, std::vector<std::size_t> outs,
             double bound) {
  Runner device("cuda"), reference("reference");
  std::vector<Array> host = arrays;
  const auto pointers = [](std::vector<Array>& x) {
    std::vector<Array*> p;
    for (Array& a : x) p.push_back(&a);
    return p;
  };
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
    for (const DType t : {DType::f32, DType::bf16}) {
      compare(
          "attention.delta",
          {random(t, s, 0, rng), random(DType::bf16, s, 0, rng), random(DType::f32, stats, 0, rng)},
          {2}, 4e-5);
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
    for (const DType x : {DType::f64, DType::f32, DType::bf16}) {
      for (const std::int64_t gap : {0, 5, 8}) {
        compare("tensor.zero", {random(x, s, gap, rng)}, {0}, 0);
        for (const DType y : {DType::f64, DType::f32, DType::bf16}) {
          compare("tensor.copy", {random(x, s, gap, rng), random(y, s, 0, rng)}, {1}, 0);
          compare("tensor.copy", {random(x, s, 0, rng), random(y, s, gap, rng)}, {1}, 0);
          compare("tensor.add", {random(x, s, gap, rng), random(y, s, gap, rng)}, {1}, 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing

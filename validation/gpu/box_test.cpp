// SPDX-License-Identifier: Apache-2.0
// Calls cut down to the box of their mask's band: the reference kernels give the same on the box as
// on the whole tile, and touch nothing else. Needs no device.
#include <gtest/gtest.h>

#include <random>

#include "kernels/cuda/attention.hpp"
#include "validation/unit/kernels_support.hpp"

namespace tessera::testing {
namespace {

using kernels::cuda::Box;
using kernels::cuda::box_of;

ops::Call forward_call(const Problem& p) {
  return {"attention.forward",
          {p.q.ref(), p.k.ref(), p.v.ref(), p.o.ref(), p.lse.ref()},
          p.attributes(),
          {}};
}
ops::Call backward_call(const Problem& p) {
  return {"attention.backward",
          {p.q.ref(), p.k.ref(), p.v.ref(), p.go.ref(), p.lse.ref(), p.delta.ref(), p.dq.ref(),
           p.dk.ref(), p.dv.ref()},
          p.attributes(),
          {}};
}

/// The call that computes the box; its mask is the band of `box`, which must stay alive.
ops::Call call_on(const Box& box, const ops::Call& whole) {
  ops::Call call = whole;
  call.args = box.args;
  call.attributes.mask = {&box.band, 1};
  return call;
}

/// One band, causal, window or without bounds, in a random box of an m x n tile.
ops::Band random_band(std::mt19937_64& rng, std::int64_t m, std::int64_t n) {
  const auto draw = [&](std::int64_t a, std::int64_t b) {
    return std::uniform_int_distribution<std::int64_t>(a, b)(rng);
  };
  ops::Band b{draw(0, m - 1), 0, draw(0, n - 1), 0};
  b.q1 = draw(b.q0 + 1, m);
  b.k1 = draw(b.k0 + 1, n);
  if (draw(0, 1)) b.hi = draw(-m, n);
  if (draw(0, 1)) b.lo = std::min(b.hi, n) - draw(0, m);
  return b;
}

TEST(gpu_box, computes_what_the_whole_tile_does_in_f64) {
  std::mt19937_64 rng(31);
  ops::Registry reference;
  kernels::register_reference(reference);
  for (int round = 0; round < 60; ++round) {
    const std::int64_t m = 1 + rng() % 24, n = 1 + rng() % 24;
    Problem whole(DType::f64, {m, n, 4, 2, 8, 6}, {random_band(rng, m, n)}, round % 3);
    whole.randomise(rng);
    for (Array* x : {&whole.o, &whole.lse, &whole.delta, &whole.dq, &whole.dk, &whole.dv}) {
      x->randomise(rng);
    }
    Problem part = whole;
    for (const auto make : {forward_call, backward_call}) {
      const ops::Call call = make(part);
      const auto box = box_of(call);
      ASSERT_TRUE(box);
      EXPECT_EQ(box->args[0].shape[0], part.mask[0].q1 - part.mask[0].q0);
      EXPECT_EQ(box->args[1].shape[0], part.mask[0].k1 - part.mask[0].k0);
      reference.run(call_on(*box, call));
      reference.run(make(whole));
    }
    for (const auto array :
         {&Problem::o, &Problem::lse, &Problem::dq, &Problem::dk, &Problem::dv}) {
      ASSERT_TRUE((part.*array).same_bits(whole.*array)) << "round " << round;
    }
  }
}

TEST(gpu_box, of_zigzag_and_striped_tiles_has_its_diagonal_on_the_corner) {
  const auto band_of = [](const ops::Band& band) {
    const Problem p(DType::bf16, {64, 64, 1, 1, 8, 8}, {band});
    return box_of(forward_call(p))->band;
  };
  EXPECT_EQ(band_of({0, 64, 0, 32}), (ops::Band{0, 64, 0, 32}));
  EXPECT_EQ(band_of({32, 64, 0, 64}), (ops::Band{0, 32, 0, 64}));
  EXPECT_EQ(band_of({1, 64, 0, 63, -open, -1}), (ops::Band{0, 63, 0, 63, -open, 0}));
  EXPECT_EQ(band_of({32, 64, 32, 64, -open, 0}), (ops::Band{0, 32, 0, 32, -open, 0}));
  EXPECT_EQ(band_of({8, 40, 20, 52, 5, 12}), (ops::Band{0, 32, 0, 32, -7, 0}));
}

TEST(gpu_box, there_is_none_without_exactly_one_band_inside_the_tile) {
  for (const std::vector<ops::Band>& mask :
       std::vector<std::vector<ops::Band>>{{},
                                           {{0, 4, 0, 4}, {4, 8, 0, 8}},
                                           {{3, 3, 0, 8}},
                                           {{0, 8, 5, 5}},
                                           {{0, 9, 0, 8}},
                                           {{0, 8, 0, 9}},
                                           {{-1, 8, 0, 8}}}) {
    const Problem p(DType::f32, {8, 8, 1, 1, 4, 4}, mask);
    EXPECT_FALSE(box_of(forward_call(p))) << mask.size() << " bands";
    EXPECT_FALSE(box_of(backward_call(p))) << mask.size() << " bands";
  }
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

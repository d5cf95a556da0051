// SPDX-License-Identifier: Apache-2.0
// The row kernels that devices run, on the host space: against the reference in f64 and f32, with
// masks of more bands than one launch takes, and rows and cells that nobody may look at.
#include <gtest/gtest.h>

#include "kernels/kokkos/attention_rows.hpp"
#include "kernels_support.hpp"

namespace tessera::testing {
namespace {

namespace portable = kernels::portable;

using Output = Array Problem::*;
constexpr Output outputs[] = {&Problem::o, &Problem::lse, &Problem::dq, &Problem::dk, &Problem::dv};

void forward_rows(Problem& p) {
  portable::forward_rows(portable::HostSpace(),
                         {"attention.forward",
                          {p.q.ref(), p.k.ref(), p.v.ref(), p.o.ref(), p.lse.ref()},
                          p.attributes(),
                          {}});
}

void run_rows(Problem& p, const Backend& for_delta) {
  forward_rows(p);
  p.make_delta(for_delta);
  portable::backward_rows(portable::HostSpace(),
                          {"attention.backward",
                           {p.q.ref(), p.k.ref(), p.v.ref(), p.go.ref(), p.lse.ref(), p.delta.ref(),
                            p.dq.ref(), p.dk.ref(), p.dv.ref()},
                           p.attributes(),
                           {}});
}

/// Both on the same problem and state; the largest difference must be within `bound`.
void expect_equal(Problem p, double bound) {
  const Backend reference("reference");
  Problem exact = p.oracle();
  exact.both(reference);
  run_rows(p, reference);
  for (const auto array : outputs) {
    EXPECT_LE(distance(p.*array, exact.*array), bound * std::max(1.0, largest(exact.*array)));
  }
}

TEST(kernels_rows, match_the_reference) {
  std::mt19937_64 rng(61);
  for (int round = 0; round < 24; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    const DType t = round % 2 ? DType::f32 : DType::f64;
    Problem p = problem_of_any_shape(rng, t, 60, 70);
    p.softcap = round % 4 == 3 ? 3 : 0;
    p.randomise(rng);
    if (round % 3 == 0) {
      for (Array* x : {&p.o, &p.lse, &p.dq, &p.dk, &p.dv}) x->randomise(rng);
    }
    expect_equal(p, t == DType::f64 ? 1e-12 : 3e-5);
  }
}

TEST(kernels_rows, masks_of_many_bands_go_in_parts) {
  std::mt19937_64 rng(62);
  std::vector<ops::Band> mask;
  for (std::int64_t at = 0; at < 100; at += 3) {
    const std::int64_t end = std::min<std::int64_t>(at + 3, 100);
    mask.push_back({at, end, at, end, -open, 0});   // documents of three tokens
    mask.push_back({at, end, end, 100, -open, 7});  // and a few keys of the next ones
  }
  ASSERT_GT(static_cast<std::int64_t>(mask.size()), 2 * portable::Bands::most);
  Problem p(DType::f64, {100, 100, 2, 1, 16, 12}, mask);
  p.randomise(rng);
  expect_equal(p, 1e-12);
}

TEST(kernels_rows, unseen_rows_may_hold_nan_and_states_stay) {
  std::mt19937_64 rng(63);
  const Backend reference("reference");
  Problem p(DType::f64, {40, 50, 2, 2, 8, 8}, {{10, 20, 5, 25, -3, 9}});
  p.randomise(rng);
  p.lse.fill(0.5);
  for (std::int64_t i = 0; i < 50; ++i) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t c = 0; c < 8; ++c) {
        if (i < 40 && !row_sees(p.mask, i)) p.q.set(nan, i, h, c);
        if (!key_seen(p.mask, 40, i)) p.k.set(nan, i, h, c), p.v.set(nan, i, h, c);
      }
    }
  }
  const Problem before = p;
  run_rows(p, reference);
  for (const auto array : outputs) EXPECT_TRUE(all_finite(p.*array));
  for (std::int64_t i = 0; i < 40; ++i) {
    EXPECT_EQ(p.lse.get(1, i) == before.lse.get(1, i), !row_sees(p.mask, i)) << "row " << i;
  }
}

TEST(kernels_rows, keys_of_weight_zero_leave_no_trace) {
  std::mt19937_64 rng(64);
  const Backend reference("reference");
  Problem p(DType::f64, {6, 9, 1, 1, 4, 4}, {{0, 6, 0, 9, -open, 2}});
  p.randomise(rng);
  p.q.fill(1);
  for (const std::int64_t j : {0, 1, 2, 5}) p.k.set(-infinity, j, 0, 1);  // row 0 sees no other
  Problem exact = p;
  exact.forward(reference);
  forward_rows(p);
  EXPECT_EQ(p.lse.get(0, 0), -infinity);
  EXPECT_TRUE(all_finite(p.o));
  EXPECT_LE(distance(p.o, exact.o), 1e-14);
  EXPECT_LE(distance(p.lse, exact.lse), 1e-14);
}

}  // namespace
}  // namespace tessera::testing

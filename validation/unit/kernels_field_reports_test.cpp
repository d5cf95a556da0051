// SPDX-License-Identifier: Apache-2.0
// Faults that users of similar systems met, tried on both backends; each test is named after its
// entry in the list of field reports. Most use Q = 0, so that a row is the mean of its visible V.
#include <gtest/gtest.h>

#include "kernels_support.hpp"

namespace tessera::testing {
namespace {

class FieldReports : public ::testing::TestWithParam<const char*> {
 protected:
  Backend backend{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(backends, FieldReports, ::testing::Values("reference", "kokkos"),
                         [](const auto& info) { return std::string(info.param); });

/// One head, dimension 1, Q = 0, K = 1, V[i] = i, dO = 1.
Problem counting(std::int64_t m, std::int64_t n, std::vector<ops::Band> mask,
                 DType t = DType::f32) {
  Problem p(t, {m, n, 1, 1, 1, 1}, std::move(mask));
  p.k.fill(1);
  p.go.fill(1);
  for (std::int64_t i = 0; i < n; ++i) p.v.set(static_cast<double>(i), i);
  return p;
}

void expect_rows(const Problem& p, const std::vector<double>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_NEAR(p.o.get(static_cast<std::int64_t>(i)), rows[i], 1e-5) << "row " << i;
  }
}

/// A state (o, lse) of one row.
struct State {
  Array o{DType::f32, {1, 1, 1}}, lse{DType::f32, {1, 1, 1}};
  State(double out, double log) { o.set(out, 0), lse.set(log, 0); }
  void merge_in(const Backend& b, const State& s) {
    b.run("attention.merge", {s.o.ref(), s.lse.ref(), o.ref(), lse.ref()});
  }
};

TEST_P(FieldReports, OB_004_padding_with_nan_does_not_spread) {
  // Documents of 3 and 5 tokens padded to 4 and 8: tokens 3 and 9 to 11 are padding.
  std::mt19937_64 rng(3);
  Problem clean(DType::f64, {12, 12, 2, 1, 4, 4}, {{0, 3, 0, 3}, {4, 9, 4, 9}});
  clean.randomise(rng);
  Problem padded = clean, dirty = clean;
  for (Array* x : {&dirty.q, &dirty.k, &dirty.v, &dirty.go}) x->fill(nan);
  dirty.mask = {{0, 12, 0, 12}};
  dirty.both(backend);  // leaves NaN in memory that later calls use again
  for (const std::int64_t row : {3, 9, 10, 11}) {
    for (Array* x : {&padded.q, &padded.k, &padded.v, &padded.go}) {
      for (std::int64_t h = 0; h < x->shape()[1]; ++h) {
        for (std::int64_t c = 0; c < 4; ++c) x->set(nan, row, h, c);
      }
    }
  }
  clean.both(backend);
  padded.both(backend);
  for (auto [x, y] : {std::pair{&padded.o, &clean.o},
                      {&padded.dq, &clean.dq},
                      {&padded.dk, &clean.dk},
                      {&padded.dv, &clean.dv}}) {
    EXPECT_EQ(distance(*x, *y), 0);
    for (const std::int64_t row : {3, 9, 10, 11}) EXPECT_EQ(x->get(row), 0);
  }
  EXPECT_EQ(padded.lse.get(0, 3), -infinity);
  EXPECT_GT(largest(clean.dk), 0.01);
}

TEST_P(FieldReports, OB_005_full_mask_in_zigzag_order_is_complete) {
  // Two ranks hold tokens 0 1 6 7 and 2 3 4 5; each merges both key tiles.
  const std::vector<std::vector<double>> tokens{{0, 1, 6, 7}, {2, 3, 4, 5}};
  Problem rank = counting(4, 4, {{0, 4, 0, 4}});
  for (const auto& owner : tokens) {
    for (std::int64_t j = 0; j < 4; ++j) rank.v.set(owner[j], j);
    rank.forward(backend);
  }
  expect_rows(rank, {3.5, 3.5, 3.5, 3.5});
}

TEST_P(FieldReports, OB_007_mask_follows_global_positions) {
  Problem late = counting(4, 8, {{0, 4, 0, 8, -open, 4}});  // queries 4 to 7 of 8
  late.forward(backend);
  expect_rows(late, {2.0, 2.5, 3.0, 3.5});

  Problem early = counting(5, 2, {{0, 5, 0, 2, -open, -3}});  // 5 queries, keys at positions 3, 4
  early.v.set(3, 0), early.v.set(4, 1);
  early.forward(backend);
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(early.o.get(i), 0);
    EXPECT_EQ(early.lse.get(0, i), -infinity);
  }
  EXPECT_NEAR(early.o.get(3), 3.0, 1e-6);
  EXPECT_NEAR(early.o.get(4), 3.5, 1e-6);
}

TEST_P(FieldReports, OB_008_window_counts_the_token_itself) {
  Problem p = counting(16, 16, {{0, 16, 0, 16, -3, 0}});
  EXPECT_EQ(visible_pairs(p.mask, 16), 58);
  p.forward(backend);
  EXPECT_NEAR(p.o.get(10), 8.5, 1e-5);
  EXPECT_NEAR(p.lse.get(0, 10), std::log(4.0), 1e-6);
}

TEST_P(FieldReports, OB_011_only_listed_tiles_are_attended) {
  Problem p = counting(8, 8, {{0, 4, 0, 4}, {4, 8, 4, 8}});
  p.forward(backend);
  expect_rows(p, {1.5, 1.5, 1.5, 1.5, 5.5, 5.5, 5.5, 5.5});
}

TEST_P(FieldReports, OB_013_queries_in_several_slices_are_merged) {
  const std::vector<ops::Band> mask{{0, 4, 0, 2}, {0, 4, 2, 4}};
  Problem first = counting(4, 4, mask);
  first.forward(backend);
  expect_rows(first, {1.5, 1.5, 1.5, 1.5});
  for (int run = 0; run < 20; ++run) {
    Problem again = counting(4, 4, mask);
    again.forward(backend);
    EXPECT_TRUE(again.o.same_bits(first.o)) << "run " << run;
  }
  Problem grid = counting(4, 4, mask);
  for (const Range q : {Range{0, 2}, Range{2, 4}}) {
    for (const Range k : {Range{2, 4}, Range{0, 2}}) {
      const auto tile = tile_of(mask, q, k);
      backend.run("attention.forward",
                  {grid.q.ref().slice(q, {0, 1}), grid.k.ref().slice(k, {0, 1}),
                   grid.v.ref().slice(k, {0, 1}), grid.o.ref().slice(q, {0, 1}),
                   grid.lse.ref().slice({0, 1}, q)},
                  {tile, 1.0, 0.0});
    }
  }
  expect_rows(grid, {1.5, 1.5, 1.5, 1.5});
}

TEST_P(FieldReports, OB_014_lengths_off_the_block_with_a_score_function_stay_finite) {
  const Backend oracle("reference");
  for (const std::int64_t n : {17, 257, 1025}) {
    std::mt19937_64 rng(5);
    Problem p(DType::f32, {n, n, 1, 1, 8, 8}, {{0, n, 0, n, -open, 0}});
    p.randomise(rng);
    p.softcap = 5;
    Problem exact = p.oracle();
    p.both(backend);
    exact.both(oracle);
    for (const auto& [x, y] : {std::pair{p.dq, exact.dq}, {p.dk, exact.dk}, {p.dv, exact.dv}}) {
      EXPECT_TRUE(all_finite(x));
      EXPECT_LT(distance(x, y), 2e-5) << "length " << n;
    }
  }
}

TEST_P(FieldReports, OB_016_f32_gradients_are_near_fp64_for_any_split) {
  const Backend oracle("reference");
  for (const std::int64_t parts : {1, 2, 4}) {
    std::mt19937_64 rng(8);
    Problem p(DType::f32, {64, 64, 4, 4, 16, 16}, {{0, 64, 0, 64, -open, 0}});
    p.randomise(rng);
    Problem exact = p.oracle();
    exact.both(oracle);
    const std::int64_t c = 64 / parts;
    const auto tiles = [&](auto f) {
      for (std::int64_t t = 0; t < parts; ++t) f(Range{t * c, (t + 1) * c});
    };
    tiles([&](Range k) {
      const auto mask = tile_of(p.mask, {0, 64}, k);
      backend.run("attention.forward",
                  {p.q.ref(), p.k.ref().slice(k, {0, 4}), p.v.ref().slice(k, {0, 4}), p.o.ref(),
                   p.lse.ref()},
                  {mask, p.scale, 0});
    });
    p.make_delta(backend);
    tiles([&](Range k) {
      const auto mask = tile_of(p.mask, {0, 64}, k);
      backend.run("attention.backward",
                  {p.q.ref(), p.k.ref().slice(k, {0, 4}), p.v.ref().slice(k, {0, 4}), p.go.ref(),
                   p.lse.ref(), p.delta.ref(), p.dq.ref(), p.dk.ref().slice(k, {0, 4}),
                   p.dv.ref().slice(k, {0, 4})},
                  {mask, p.scale, 0});
    });
    EXPECT_LT(distance(p.dq, exact.dq), 1e-5 * largest(exact.dq)) << parts;
    EXPECT_LT(distance(p.dk, exact.dk), 1e-5 * largest(exact.dk)) << parts;
    EXPECT_LT(distance(p.dv, exact.dv), 1e-5 * largest(exact.dv)) << parts;
  }
}

TEST_P(FieldReports, OB_017_merge_with_an_empty_side_keeps_the_other) {
  for (const bool empty_first : {true, false}) {
    State a(0, -infinity), b(0.5, -2.0);
    State& into = empty_first ? a : b;
    into.merge_in(backend, empty_first ? b : a);
    EXPECT_FLOAT_EQ(static_cast<float>(into.o.get(0)), 0.5f);
    EXPECT_FLOAT_EQ(static_cast<float>(into.lse.get(0)), -2.0f);
  }
  State nothing(0, -infinity);
  nothing.merge_in(backend, State(0, -infinity));
  EXPECT_EQ(nothing.o.get(0), 0);
  EXPECT_EQ(nothing.lse.get(0), -infinity);
}

TEST_P(FieldReports, OB_018_merge_of_large_lse_does_not_overflow) {
  State s(0, 1000);
  s.merge_in(backend, State(1, 1001));
  EXPECT_NEAR(s.lse.get(0), 1001.31326, 1e-4);
  EXPECT_NEAR(s.o.get(0), 0.731059, 1e-6);

  // A step that touches the second half of the rows leaves the first half as it was.
  Problem p = counting(4, 4, {{2, 4, 0, 4}});
  p.lse.fill(1000), p.o.fill(0.25);
  p.forward(backend);
  for (std::int64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(p.lse.get(0, i), 1000);
    EXPECT_EQ(p.o.get(i), 0.25);
  }
}

TEST_P(FieldReports, OB_019_error_does_not_grow_with_the_number_of_tiles) {
  const Backend oracle("reference");
  std::mt19937_64 rng(19);
  Problem start(DType::bf16, {256, 256, 2, 2, 64, 64}, {{0, 256, 0, 256}});
  start.randomise(rng);
  Problem exact = start.oracle();
  exact.forward(oracle);
  std::vector<double> errors;
  for (const std::int64_t parts : {1, 8, 64}) {
    Problem p = start;
    const std::int64_t c = 256 / parts;
    for (std::int64_t t = 0; t < parts; ++t) {
      const Range k{t * c, (t + 1) * c};
      const std::vector<ops::Band> mask{{0, 256, 0, c}};
      backend.run("attention.forward",
                  {p.q.ref(), p.k.ref().slice(k, {0, 2}), p.v.ref().slice(k, {0, 2}), p.o.ref(),
                   p.lse.ref()},
                  {mask, p.scale, 0});
    }
    errors.push_back(distance(p.o, exact.o));
  }
  // f32 state: rounding stays far below one bf16 step (4e-3) however many tiles are merged.
  EXPECT_LT(errors[1], 1.5 * errors[0] + 1e-6);
  EXPECT_LT(errors[2], 1.5 * errors[0] + 3e-6);
}

TEST_P(FieldReports, OB_020_fully_masked_row_is_zero_not_the_mean) {
  Problem p = counting(2, 2, {{1, 2, 0, 2}});
  p.v.set(1, 0), p.v.set(3, 1);
  p.both(backend);
  EXPECT_EQ(p.o.get(0), 0);
  EXPECT_EQ(p.lse.get(0, 0), -infinity);
  EXPECT_NEAR(p.o.get(1), 2.0, 1e-6);
  EXPECT_NEAR(p.dv.get(0), 0.5, 1e-6);  // from row 1 only
  EXPECT_NEAR(p.dv.get(1), 0.5, 1e-6);
}

TEST_P(FieldReports, OB_021_empty_row_leaves_all_gradients_finite) {
  std::mt19937_64 rng(21);
  // Keys 2 and 3 are padding; queries 0 to 2 see keys 0 and 1 up to distance 2, query 3 none.
  Problem p(DType::f32, {4, 4, 1, 1, 4, 4}, {{0, 3, 0, 2, -2, open}});
  p.randomise(rng);
  for (std::int64_t c = 0; c < 4; ++c) p.go.set(0, 3, 0, c);
  Problem without = of_first_queries(p, 3);
  p.both(backend);
  without.both(backend);
  EXPECT_TRUE(all_finite(p.dq) && all_finite(p.dk) && all_finite(p.dv));
  for (std::int64_t c = 0; c < 4; ++c) EXPECT_EQ(p.dq.get(3, 0, c), 0);
  EXPECT_EQ(distance(without.dk, p.dk), 0);
  EXPECT_EQ(distance(without.dv, p.dv), 0);
  EXPECT_EQ(distance(without.dq, p.dq), 0);
}

TEST_P(FieldReports, OB_023_every_option_reaches_backward) {
  // Scale, window, documents and soft cap in turn: forward differences in f64 along one direction.
  std::mt19937_64 rng(23);
  const std::vector<ops::Band> full{{0, 8, 0, 8}}, window{{0, 8, 0, 8, -2, 0}},
      documents{{0, 3, 0, 3}, {3, 8, 3, 8}};
  for (int option = 0; option < 4; ++option) {
    Problem p(DType::f64, {8, 8, 1, 1, 3, 3},
              option == 1   ? window
              : option == 2 ? documents
                            : full);
    p.randomise(rng);
    if (option == 0) p.scale = 0.5;
    if (option == 3) p.softcap = 1.0;
    Problem up = p, down = p;
    Array direction(DType::f64, p.k.shape());
    direction.randomise(rng);
    double along = 0, slope = 0;
    p.both(backend);
    direction.each([&](auto i, auto j, auto c) {
      const double step = 1e-5 * direction.get(i, j, c);
      up.k.set(p.k.get(i, j, c) + step, i, j, c);
      down.k.set(p.k.get(i, j, c) - step, i, j, c);
      along += p.dk.get(i, j, c) * direction.get(i, j, c);
    });
    up.forward(backend);
    down.forward(backend);
    up.o.each([&](auto i, auto j, auto c) {
      slope += (up.o.get(i, j, c) - down.o.get(i, j, c)) / 2e-5 * p.go.get(i, j, c);
    });
    EXPECT_NEAR(along, slope, 1e-8) << "option " << option;
    EXPECT_GT(std::abs(along), 1e-4);
  }
}

TEST(field_reports, OB_027_offsets_are_64_bit) {
  // No memory is touched: addresses only, from a base inside the address space.
  auto* const base = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20);
  const TensorRef square{base, DType::f32, Space::host, {46341, 46341, 1}, {46341, 1, 1}};
  const TensorRef wide{base, DType::f32, Space::host, {300000, 9728, 1}, {9728, 1, 1}};
  const auto elements = [&](const TensorRef& t, Range a, Range b) {
    return (static_cast<std::byte*>(t.slice(a, b).data) - base) / 4;
  };
  EXPECT_EQ(elements(square, {46340, 46341}, {46340, 46341}), 2147488280);
  EXPECT_EQ(elements(wide, {225304, 225305}, {0, 1}), 2191757312);
  EXPECT_EQ(reinterpret_cast<std::byte*>(&wide.at<float>(225304)) - base, 4 * 2191757312);

  const std::int64_t far = std::int64_t{3} << 31;
  const ops::Band causal{far, far + 10, 0, 2 * far, -open, 0};
  EXPECT_EQ(causal.keys_of(far + 4), (Range{0, far + 5}));
}

}  // namespace
}  // namespace tessera::testing

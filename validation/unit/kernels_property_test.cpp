// SPDX-License-Identifier: Apache-2.0
// Portable kernels against the fp64 oracle over random shapes, masks, strides, types and tilings.
// Rows that nobody sees hold NaN, rows without keys must keep their state bit for bit.
#include <gtest/gtest.h>

#include "kernels_support.hpp"

namespace tessera::testing {
namespace {

struct Draw {
  std::mt19937_64 rng;
  explicit Draw(std::uint64_t seed) : rng(seed) {}
  std::int64_t operator()(std::int64_t a, std::int64_t b) {
    return std::uniform_int_distribution<std::int64_t>(a, b)(rng);
  }
  std::int64_t of(std::initializer_list<std::int64_t> list) {
    return *(list.begin() + (*this)(0, static_cast<std::int64_t>(list.size()) - 1));
  }
};

Shape random_shape(Draw& draw, std::int64_t most) {
  Shape s;
  s.m = draw(1, most), s.n = draw(1, most);
  s.hk = draw(1, 3), s.hq = s.hk * draw(1, 4);
  s.d = draw.of({1, 3, 8, 16, 40}), s.dv = draw.of({1, 5, 8, 16, 24});
  return s;
}

Problem random_problem(Draw& draw, DType t, const Shape& s) {
  Problem p(t, s, random_mask(draw.rng, s.m, s.n), draw.of({0, 0, 3, 16}));
  p.randomise(draw.rng);
  p.softcap = draw(0, 2) == 0 ? 2.5 : 0;
  p.scale *= draw.of({1, 1, 3});
  return p;
}

/// State as another tile would have left it: some rows empty, others with a value.
void random_state(Draw& draw, Problem& p) {
  p.o.randomise(draw.rng);
  p.lse.randomise(draw.rng, 3);
  p.lse.each([&](auto h, auto i, auto) {
    if (draw(0, 3) != 0) return;
    p.lse.set(-infinity, h, i);
    for (std::int64_t c = 0; c < p.o.shape()[2]; ++c) p.o.set(0, i, h, c);
  });
}

void fill_row(Array& x, std::int64_t row, double value) {
  for (std::int64_t h = 0; h < x.shape()[1]; ++h) {
    for (std::int64_t c = 0; c < x.shape()[2]; ++c) x.set(value, row, h, c);
  }
}

void poison_unseen_rows(Problem& p) {
  const std::int64_t m = p.q.shape()[0], n = p.k.shape()[0];
  for (std::int64_t i = 0; i < m; ++i) {
    if (row_sees(p.mask, i)) continue;
    fill_row(p.q, i, nan);
    fill_row(p.go, i, nan);
  }
  for (std::int64_t j = 0; j < n; ++j) {
    if (key_seen(p.mask, m, j)) continue;
    fill_row(p.k, j, nan);
    fill_row(p.v, j, nan);
  }
}

/// Error of the tested path against the oracle, measured by that of the plain reference.
void expect_close(const char* what, const Array& got, const Array& plain, const Array& exact) {
  const double error = distance(got, exact), base = distance(plain, exact);
  const bool f64 = got.dtype() == DType::f64;
  const double size = std::max(1.0, largest(exact));
  EXPECT_LE(error, f64 ? 1e-12 * size : 3 * base + 2e-6 * size)
      << what << ": plain reference has " << base;
}

void expect_rows_untouched(const Problem& now, const Problem& before) {
  before.lse.each([&](auto h, auto i, auto) {
    if (row_sees(before.mask, i)) return;
    EXPECT_EQ(now.lse.get(h, i), before.lse.get(h, i));
    for (std::int64_t c = 0; c < before.o.shape()[2]; ++c) {
      EXPECT_EQ(now.o.get(i, h, c), before.o.get(i, h, c));
    }
  });
}

void check(Draw& draw, DType t, std::int64_t most) {
  const Shape s = random_shape(draw, most);
  Problem start = random_problem(draw, t, s);
  if (draw(0, 1)) random_state(draw, start);
  poison_unseen_rows(start);
  SCOPED_TRACE(::testing::Message()
               << name_of(t) << " m " << s.m << " n " << s.n << " heads " << s.hq << "/" << s.hk
               << " d " << s.d << "/" << s.dv << " softcap " << start.softcap);
  const Backend reference("reference"), portable("kokkos");
  Problem exact = start.oracle(), plain = start, got = start;
  exact.both(reference);
  plain.both(reference);
  got.both(portable);
  expect_close("o", got.o, plain.o, exact.o);
  expect_close("lse", got.lse, plain.lse, exact.lse);
  expect_rows_untouched(got, start);

  // Backward from one and the same LSE and Delta, so that only its own error is measured.
  Problem again = start;
  again.lse = plain.lse, again.delta = plain.delta;
  again.backward(portable);
  Problem precise = again.oracle();
  for (Array* x : {&precise.dq, &precise.dk, &precise.dv}) x->fill(0);
  precise.backward(reference);
  expect_close("dq", again.dq, plain.dq, precise.dq);
  expect_close("dk", again.dk, plain.dk, precise.dk);
  expect_close("dv", again.dv, plain.dv, precise.dv);
}

TEST(kernels, portable_equals_oracle_small_random_f64) {
  Draw draw(1);
  for (int i = 0; i < 80; ++i) check(draw, DType::f64, 60);
}

TEST(kernels, portable_equals_oracle_small_random_f32) {
  Draw draw(2);
  for (int i = 0; i < 80; ++i) check(draw, DType::f32, 60);
}

TEST(kernels, portable_equals_oracle_small_random_bf16) {
  Draw draw(3);
  for (int i = 0; i < 80; ++i) check(draw, DType::bf16, 60);
}

TEST(kernels, portable_equals_oracle_small_random_f16) {
  Draw draw(8);
  for (int i = 0; i < 80; ++i) check(draw, DType::f16, 60);
}

TEST(kernels, portable_equals_oracle_across_blocks) {
  Draw draw(4);
  for (int i = 0; i < 2; ++i) {
    for (const DType t : all_dtypes) check(draw, t, 600);
  }
}

/// Forward over a grid of tiles, each merged in place or, every other one, by attention.merge;
/// backward adds up over the tiles.
void run_tiled(Problem& p, const Backend& b, Draw& draw) {
  const std::int64_t m = p.q.shape()[0], n = p.k.shape()[0];
  const std::int64_t qc = draw(0, m), kc = draw(0, n), heads = p.q.shape()[1];
  const Range all{0, p.k.shape()[1]}, all_q{0, heads};
  const auto each_tile = [&](auto f) {
    for (const Range q : {Range{0, qc}, Range{qc, m}}) {
      for (const Range k : {Range{kc, n}, Range{0, kc}}) {
        if (!q.empty() && !k.empty()) f(q, k, tile_of(p.mask, q, k));
      }
    }
  };
  int count = 0;
  each_tile([&](Range q, Range k, const std::vector<ops::Band>& mask) {
    TensorRef o = p.o.ref().slice(q, all_q), lse = p.lse.ref().slice(all_q, q);
    Array part(p.o.dtype(), {q.size(), heads, p.o.shape()[2]});
    Array part_lse(p.o.dtype(), {heads, q.size(), 1});
    part.fill(7), part_lse.fill(7);
    const bool apart = count++ % 2;
    if (apart) b.run("attention.reset", {part.ref(), part_lse.ref()});
    b.run("attention.forward",
          {p.q.ref().slice(q, all_q), p.k.ref().slice(k, all), p.v.ref().slice(k, all),
           apart ? part.ref() : o, apart ? part_lse.ref() : lse},
          {mask, p.scale, p.softcap});
    if (apart) b.run("attention.merge", {part.ref(), part_lse.ref(), o, lse});
  });
  p.make_delta(b);
  each_tile([&](Range q, Range k, const std::vector<ops::Band>& mask) {
    b.run("attention.backward",
          {p.q.ref().slice(q, all_q), p.k.ref().slice(k, all), p.v.ref().slice(k, all),
           p.go.ref().slice(q, all_q), p.lse.ref().slice(all_q, q), p.delta.ref().slice(all_q, q),
           p.dq.ref().slice(q, all_q), p.dk.ref().slice(k, all), p.dv.ref().slice(k, all)},
          {mask, p.scale, p.softcap});
  });
}

TEST(kernels, tiles_merged_equal_one_tile_f64) {
  Draw draw(5);
  const Backend reference("reference"), portable("kokkos");
  for (int i = 0; i < 60; ++i) {
    const Shape s = random_shape(draw, 80);
    Problem whole = random_problem(draw, DType::f64, s), tiled = whole;
    whole.both(reference);
    run_tiled(tiled, i % 3 ? portable : reference, draw);
    EXPECT_LE(distance(tiled.o, whole.o), 1e-12);
    EXPECT_LE(distance(tiled.lse, whole.lse), 1e-12 * std::max(1.0, largest(whole.lse)));
    EXPECT_LE(distance(tiled.dq, whole.dq), 1e-11 * std::max(1.0, largest(whole.dq)));
    EXPECT_LE(distance(tiled.dk, whole.dk), 1e-11 * std::max(1.0, largest(whole.dk)));
    EXPECT_LE(distance(tiled.dv, whole.dv), 1e-11 * std::max(1.0, largest(whole.dv)));
  }
}

TEST(kernels, same_call_gives_same_bits) {
  Draw draw(6);
  const Backend portable("kokkos");
  for (const DType t : all_dtypes) {
    const Shape s{300, 290, 4, 2, 64, 48};
    Problem a = random_problem(draw, t, s), b = a;
    a.both(portable);
    b.both(portable);
    EXPECT_TRUE(a.o.same_bits(b.o) && a.lse.same_bits(b.lse));
    EXPECT_TRUE(a.dq.same_bits(b.dq) && a.dk.same_bits(b.dk) && a.dv.same_bits(b.dv));
    EXPECT_GT(largest(a.dk), 0);
  }
}

TEST(kernels, head_dimensions_of_models_match_oracle) {
  Draw draw(7);
  const Backend reference("reference"), portable("kokkos");
  for (const auto& [d, dv] : {std::pair{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}}) {
    for (const DType t : all_dtypes) {
      Problem start(t, {130, 140, 2, 1, d, dv}, {{0, 130, 0, 140, -open, 10}});
      start.randomise(draw.rng);
      Problem exact = start.oracle(), plain = start, got = start;
      exact.both(reference);
      plain.both(reference);
      got.both(portable);
      expect_close("o", got.o, plain.o, exact.o);
      expect_close("dq", got.dq, plain.dq, exact.dq);
      expect_close("dk", got.dk, plain.dk, exact.dk);
      expect_close("dv", got.dv, plain.dv, exact.dv);
    }
  }
}

}  // namespace
}  // namespace tessera::testing

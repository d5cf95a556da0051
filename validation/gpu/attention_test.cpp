// SPDX-License-Identifier: Apache-2.0
// Attention on the device against the f64 oracle. bf16, f16: the error may be at most twice that of
// a plain attention of that type (attention brief 12, test 2) over random shapes, bands and
// strides.
#include <fmt/format.h>

#include "kernels/cuda/cudnn.hpp"
#include "validation/gpu/device.hpp"

namespace tessera::testing {
namespace {

struct Outputs {
  const char* name;
  Array Problem::*array;
};
constexpr Outputs outputs[] = {{"o", &Problem::o},
                               {"lse", &Problem::lse},
                               {"dq", &Problem::dq},
                               {"dk", &Problem::dk},
                               {"dv", &Problem::dv}};

struct Case {
  Shape shape;
  std::vector<ops::Band> mask;
  std::int64_t gap = 0;
  double softcap = 0;
  DType type = DType::bf16;
};

constexpr DType tensor_core_types[] = {DType::bf16, DType::f16};
constexpr std::pair<int, int> head_sizes[] = {
    {64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};

/// Largest ratio of our error to that of the plain attention of the type, over all outputs.
double worst_ratio(Runner& ours, const Case& c, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  Problem start(c.type, c.shape, c.mask, c.gap);
  start.softcap = c.softcap;
  start.randomise(rng);
  Problem plain = start, device = start, exact = start.oracle();
  Runner reference("reference");
  reference.both(exact);
  c.type == DType::f16 ? plain_attention<Float16>(plain) : plain_attention<BFloat16>(plain);
  ours.both(device);
  double worst = 0;
  for (const auto& [name, array] : outputs) {
    const double error = distance(device.*array, exact.*array);
    const double measure = distance(plain.*array, exact.*array);
    const double floor = 1e-5 * std::max(1.0, largest(exact.*array));
    worst = std::max(worst, error / (measure + floor));
    // cuDNN rounds its part of a sum over query heads to 16 bits, which f16 shows more than bf16.
    EXPECT_LE(error, (c.type == DType::f16 ? 2.5 : 2.0) * measure + floor)
        << name << ": " << error << ", plain " << name_of(c.type) << " " << measure << ", m "
        << c.shape.m << " n " << c.shape.n << " heads " << c.shape.hq << "/" << c.shape.hk << " d "
        << c.shape.d << "/" << c.shape.dv << " gap " << c.gap << " bands " << c.mask.size();
  }
  return worst;
}

/// Up to 400 tokens, 3 key heads, groups of 4, any bands; some with gaps between rows, each fifth
/// with a cap, every other one in f16.
Case random_case(std::mt19937_64& rng, int d, int dv, int round) {
  const auto draw = [&](int a, int b) { return std::uniform_int_distribution(a, b)(rng); };
  const int hk = draw(1, 3), m = draw(1, 400), n = draw(1, 400);
  return {{m, n, hk * draw(1, 4), hk, d, dv},
          random_mask(rng, m, n),
          8 * draw(0, 1),
          round % 5 == 4 ? 2.0 : 0.0,
          tensor_core_types[round % 2]};
}

bool has_cudnn(const Runner& runner) {
  return std::ranges::any_of(runner.registry().list(),
                             [](auto& i) { return i.backend == "cudnn"; });
}

std::vector<ops::Band> causal(std::int64_t m, std::int64_t n) { return {{0, m, 0, n, -open, 0}}; }
std::vector<ops::Band> full(std::int64_t m, std::int64_t n) { return {{0, m, 0, n, -open, open}}; }

TEST(gpu_attention, every_type_and_head_size_full_and_causal) {
  Runner ours("cuda");
  for (const DType t : tensor_core_types) {
    for (const auto& [d, dv] : head_sizes) {
      for (const bool is_full : {true, false}) {
        const auto mask = is_full ? full(256, 256) : causal(256, 256);
        const double worst = worst_ratio(ours, {{256, 256, 2, 2, d, dv}, mask, 0, 0, t}, 1);
        fmt::print("{} d {}/{} {}: error ratio {:.2f}\n", name_of(t), d, dv,
                   is_full ? "full" : "causal", worst);
      }
    }
  }
}

/// dQ, dK and dV from one pass over the tile, which head sizes 64 and 128 have.
TEST(gpu_attention, one_pass_full_causal_and_random) {
  Runner ours("cuda-one-pass");
  std::mt19937_64 rng(12);
  for (const int d : {64, 128}) {
    double worst = 0;
    for (const DType t : tensor_core_types) {
      for (const auto& mask : {full(256, 256), causal(256, 256)})
        worst = std::max(worst, worst_ratio(ours, {{256, 256, 2, 2, d, d}, mask, 0, 0, t}, 1));
    }
    fmt::print("d {}, full and causal: error ratio {:.2f}\n", d, worst);
    for (int round = 0; round < 20; ++round) {
      worst = std::max(worst, worst_ratio(ours, random_case(rng, d, d, round), 300 + round));
    }
    worst = std::max(worst, worst_ratio(ours, {{1100, 1300, 4, 2, d, d}, causal(1100, 1300)}, 5));
    fmt::print("d {}, 20 random cases, causal 1100 x 1300: worst error ratio {:.2f}\n", d, worst);
  }
}

TEST(gpu_attention, one_pass_differs_in_the_last_bits_of_dq_at_most) {
  Runner ours("cuda-one-pass");
  std::mt19937_64 rng(13);
  Problem start(DType::bf16, {1500, 1500, 4, 2, 128, 128}, causal(1500, 1500));
  start.randomise(rng);
  Problem first = start;
  ours.both(first);
  for (int run = 0; run < 10; ++run) {
    Problem again = start;
    ours.both(again);
    ASSERT_TRUE(again.dk.same_bits(first.dk) && again.dv.same_bits(first.dv)) << "run " << run;
    ASSERT_LE(distance(again.dq, first.dq), 1e-5 * largest(first.dq)) << "run " << run;
  }
}

TEST(gpu_attention, random_shapes_bands_groups_and_strides) {
  Runner ours("cuda");
  std::mt19937_64 rng(11);
  double worst = 0;
  for (int round = 0; round < 30; ++round) {
    const auto [d, dv] = head_sizes[std::uniform_int_distribution(0, 4)(rng)];
    worst = std::max(worst, worst_ratio(ours, random_case(rng, d, dv, round), 100 + round));
  }
  fmt::print("30 random cases: worst error ratio {:.2f}\n", worst);
}

TEST(gpu_attention, long_rows_over_many_blocks) {
  Runner ours("cuda");
  const double worst = worst_ratio(ours, {{1100, 1300, 2, 1, 128, 128}, causal(1100, 1300)}, 5);
  const double window =
      worst_ratio(ours, {{1024, 1024, 1, 1, 128, 128}, {{0, 1024, 0, 1024, -199, 0}}}, 6);
  fmt::print("causal 1100 x 1300: error ratio {:.2f}, window 200: {:.2f}\n", worst, window);
}

/// The same numbers, to the last bit, as a copy makes of the sums, and nothing beside them: first
/// tiles and those that go on from others, blocks that the end of the tensor cuts, gaps.
TEST(gpu_attention, rounded_outputs_are_those_of_the_sums) {
  Runner resumed("cuda"), first("cuda");
  first.use_fresh();
  std::mt19937_64 rng(15);
  for (int round = 0; round < 40; ++round) {
    const auto [d, dv] = head_sizes[round / 2 % 5];
    const std::int64_t m = round % 4 == 3 ? 384 : std::uniform_int_distribution(1, 400)(rng);
    const std::int64_t gap = 8 * (round % 3);
    Problem start(tensor_core_types[round % 2], {m, 300, 4, 2, d, dv}, full(m, 300), gap);
    start.randomise(rng);
    const bool goes_on = round / 4 % 2;
    if (goes_on) {
      resumed.forward(start);
      start.k.randomise(rng);
      start.v.randomise(rng);
      start.mask = {{0, m, 0, 150}, {m / 2, m, 150, 300}};
    }
    Runner& ours = goes_on ? resumed : first;
    Problem sums = start, stored = start;
    ours.forward(sums);
    const std::array<std::int64_t, 3> shape{m, 4, dv};
    Array want(start.q.dtype(), shape, gap), out = want;
    want.each([&](auto i, auto j, auto k) { want.set(sums.o.get(i, j, k), i, j, k); });
    ours.run("attention.forward", {&stored.q, &stored.k, &stored.v, &stored.o, &stored.lse},
             stored.attributes(), &out);
    EXPECT_TRUE(out.same_bits(want))
        << "round " << round << ", " << name_of(start.q.dtype()) << " d " << d << "/" << dv << ", "
        << m << " queries, gap " << gap << ": differ by " << distance(out, want);
    EXPECT_TRUE(stored.lse.same_bits(sums.lse)) << "round " << round;
  }
  EXPECT_EQ(first.num_fresh(), 2 * 2 * 20);
  // Rows that see nothing are not looked at: nobody would store them.
  Problem p(DType::bf16, {256, 256, 2, 2, 64, 64}, {{0, 100, 0, 256}});
  const ops::Call call = Runner::looked_at("attention.forward", {&p.q, &p.k, &p.v, &p.o, &p.lse},
                                           p.attributes(), true);
  const ops::Implementation& chosen = first.registry().choose(call);
  ASSERT_EQ(chosen.backend, "cuda");
  EXPECT_FALSE(chosen.stores(call, call.args[0]));
  fmt::print("40 cases, half of them first tiles: bits of a copy\n");
}

TEST(gpu_attention, documents_meet_in_one_block) {
  Runner ours("cuda");
  std::vector<ops::Band> mask;
  for (std::int64_t at = 0, size = 1; at < 500; at += size, size = size * 2 % 97 + 1) {
    const std::int64_t end = std::min<std::int64_t>(at + size, 500);
    mask.push_back({at, end, at, end, -open, 0});
  }
  const double worst = worst_ratio(ours, {{500, 500, 4, 2, 128, 128}, mask}, 8);
  fmt::print("{} documents: error ratio {:.2f}\n", mask.size(), worst);
}

TEST(gpu_cudnn, full_causal_window_and_groups) {
  Runner ours("cudnn");
  fmt::print("{}\n", kernels::cuda::describe_cudnn());
  if (!has_cudnn(ours)) GTEST_SKIP() << "needs cuDNN: " << kernels::cuda::describe_cudnn();
  double worst = 0;
  for (const auto& [d, dv] : {std::pair{64, 64}, {128, 128}, {192, 128}}) {
    for (const int hk : {4, 2, 1}) {
      worst = std::max(worst, worst_ratio(ours, {{300, 200, 4, hk, d, dv}, full(300, 200)}, 41));
      worst = std::max(worst, worst_ratio(ours, {{256, 256, 4, hk, d, dv}, causal(256, 256)}, 42));
    }
  }
  worst = std::max(worst,
                   worst_ratio(ours, {{384, 384, 2, 2, 128, 128}, {{0, 384, 0, 384, -99, 0}}}, 43));
  worst = std::max(worst, worst_ratio(ours, {{333, 333, 2, 2, 128, 128}, causal(333, 333), 8}, 44));
  fmt::print("cudnn: worst error ratio {:.2f}\n", worst);
}

TEST(gpu_cudnn, full_causal_and_window_in_f16) {
  Runner ours("cudnn");
  if (!has_cudnn(ours)) GTEST_SKIP() << "needs cuDNN: " << kernels::cuda::describe_cudnn();
  double worst = 0;
  const auto run = [&](Shape shape, std::vector<ops::Band> mask, std::int64_t gap = 0) {
    worst = std::max(worst, worst_ratio(ours, {shape, std::move(mask), gap, 0, DType::f16}, 51));
  };
  for (const auto& [d, dv] : {std::pair{64, 64}, {128, 128}, {192, 128}}) {
    for (const int hk : {4, 2, 1}) {
      run({300, 200, 4, hk, d, dv}, full(300, 200));
      run({256, 256, 4, hk, d, dv}, causal(256, 256));
    }
  }
  run({384, 384, 2, 2, 128, 128}, {{0, 384, 0, 384, -99, 0}});
  run({333, 333, 2, 2, 128, 128}, causal(333, 333), 8);
  run({320, 320, 4, 2, 128, 128}, {{1, 320, 0, 319, -open, -1}});
  fmt::print("cudnn in f16: worst error ratio {:.2f}\n", worst);
}

/// bf16 and f16 of one shape must not meet in one plan.
TEST(gpu_cudnn, keeps_plans_of_element_types_apart) {
  Runner ours("cudnn");
  if (!has_cudnn(ours)) GTEST_SKIP() << "needs cuDNN: " << kernels::cuda::describe_cudnn();
  double worst = 0;
  for (const DType t : {DType::bf16, DType::f16, DType::bf16}) {
    worst = std::max(worst,
                     worst_ratio(ours, {{256, 256, 2, 1, 64, 64}, causal(256, 256), 0, 0, t}, 52));
  }
  fmt::print("bf16, f16, bf16 of one shape: worst error ratio {:.2f}\n", worst);
}

/// Masks that cuDNN lacks would fall to the plain kernels otherwise, a hundred times as slow.
TEST(gpu_attention, any_mask_has_tensor_cores_in_both_types) {
  Runner own("cuda");
  for (const DType t : tensor_core_types) {
    Problem p(t, {256, 256, 2, 2, 128, 128}, {{0, 100, 0, 100, -open, 0}, {100, 256, 90, 256}});
    const auto chosen = [&](const char* op, const std::vector<Array*>& args) {
      return own.registry().choose(Runner::looked_at(op, args, p.attributes(), true)).backend;
    };
    SCOPED_TRACE(name_of(t));
    EXPECT_EQ(chosen("attention.forward", {&p.q, &p.k, &p.v, &p.o, &p.lse}), "cuda");
    EXPECT_EQ(chosen("attention.backward",
                     {&p.q, &p.k, &p.v, &p.go, &p.lse, &p.delta, &p.dq, &p.dk, &p.dv}),
              "cuda-one-pass");
  }
}

/// Bands that are boxes inside a tile of m x m cells: what zigzag and striped rings give under a
/// causal mask, and boxes whose corners are nowhere special.
std::vector<ops::Band> boxes(std::int64_t m) {
  const std::int64_t half = m / 2;
  return {{0, m, 0, m, -open, 0},
          {0, m, 0, half},
          {half, m, 0, m},
          {1, m, 0, m - 1, -open, -1},
          {13, m - 9, 40, m - 3},
          {half, m, half, m, -open, 0},
          {11, half + 11, 30, half + 30, -open, 19}};
}

TEST(gpu_attention, parts_of_a_tile_in_every_backend) {
  Problem like(DType::bf16, {320, 320, 4, 2, 128, 128}, {boxes(320)[0]});
  for (const std::string& backend : Runner::backends(like)) {
    Runner ours(backend);
    double worst = 0;
    for (const ops::Band& band : boxes(320)) {
      worst = std::max(worst, worst_ratio(ours, {{320, 320, 4, 2, 128, 128}, {band}}, 46));
      worst = std::max(worst, worst_ratio(ours, {{320, 320, 2, 2, 64, 64}, {band}, 8}, 47));
    }
    const ops::Band window{32, 232, 64, 264, 32 - 49, 32};
    worst = std::max(worst, worst_ratio(ours, {{320, 320, 4, 2, 128, 128}, {window}}, 48));
    fmt::print("{}: worst error ratio {:.2f}\n", backend, worst);
  }
}

TEST(gpu_cudnn, leaves_other_masks_to_the_own_kernels) {
  Runner ours("cudnn");
  if (!has_cudnn(ours)) GTEST_SKIP() << "needs cuDNN: " << kernels::cuda::describe_cudnn();
  Problem p(DType::bf16, {256, 256, 2, 2, 128, 128}, {});
  const TensorRef like = p.q.ref();
  std::int64_t heads = 4;  // of queries, two for each of keys
  const auto chosen = [&](std::int64_t m, std::int64_t n, std::vector<ops::Band> mask) {
    const auto tensor = [&](DType t, std::array<std::int64_t, 3> shape) {
      return dense(like.data, t, shape, Space::cuda);  // is looked at, not run
    };
    const TensorRef q = tensor(DType::bf16, {m, heads, 128}), k = tensor(DType::bf16, {n, 2, 128});
    const TensorRef dq = tensor(DType::f32, {m, heads, 128}), dk = tensor(DType::f32, {n, 2, 128});
    const TensorRef row = tensor(DType::f32, {heads, m, 1});
    const ops::Call call{
        "attention.backward", {q, k, k, q, row, row, dq, dk, dk}, {mask, 0.1, 0}, {}};
    return ours.registry().choose(call).backend;
  };
  EXPECT_EQ(chosen(8192, 8192, causal(8192, 8192)), "cudnn");
  EXPECT_EQ(chosen(8192, 8192, {{0, 8192, 0, 4096}}), "cudnn");
  EXPECT_EQ(chosen(8192, 8192, {{4096, 8192, 0, 8192}}), "cudnn");
  EXPECT_EQ(chosen(8192, 8192, {{1, 8192, 0, 8191, -open, -1}}), "cudnn");
  EXPECT_EQ(chosen(1024, 1024, causal(1024, 1024)), "cuda-one-pass") << "small: ours is faster";
  EXPECT_EQ(chosen(8192, 8192, {{0, 8192, 0, 8192, -open, 5}}), "cuda-one-pass")
      << "not on the corner";
  EXPECT_EQ(chosen(8192, 8192, {{0, 8192, 0, 8192, 0, open}}), "cuda-one-pass")
      << "the upper right";
  EXPECT_EQ(chosen(8192, 8192, {{0, 4096, 0, 8192}, {4096, 8192, 0, 10}}), "cuda-one-pass");
  EXPECT_EQ(chosen(8192, 8192, {}), "cuda-one-pass") << "nothing visible";
  heads = 2;
  EXPECT_EQ(chosen(8192, 8192, causal(8192, 8192)), "cuda-one-pass") << "no heads share keys";
}

/// The budget counts what plans keep, so a plan more would show.
TEST(gpu_cudnn, shares_plans_between_like_tiles) {
  Runner ours("cudnn");
  if (!has_cudnn(ours)) GTEST_SKIP() << "needs cuDNN: " << kernels::cuda::describe_cudnn();
  std::mt19937_64 rng(49);
  const auto run = [&](const ops::Band& band) {
    Problem p(DType::bf16, {256, 256, 2, 1, 128, 128}, {band});
    p.randomise(rng);
    ours.both(p);
    return ours.budget().in_use();
  };
  run({0, 256, 0, 256, -open, 0});
  const std::int64_t two = run({0, 256, 0, 128}), three = run({128, 256, 0, 256});
  EXPECT_GT(three, two);
  for (int tile = 0; tile < 3; ++tile) EXPECT_EQ(run({0, 256, 0, 128}), three);
  EXPECT_EQ(run({0, 256, 128, 256}), three) << "the same box elsewhere";
  EXPECT_EQ(run({128, 256, 0, 256}), three);
}

/// What `ours` makes of a state is what "cuda" makes of it.
void expect_adds_to_the_state(Runner& ours, double bound, std::uint64_t seed) {
  Runner own("cuda");
  std::mt19937_64 rng(seed);
  Problem a(DType::bf16, {200, 200, 2, 1, 128, 128}, causal(200, 200));
  a.randomise(rng);
  for (Array* x : {&a.o, &a.lse, &a.dq, &a.dk, &a.dv}) x->randomise(rng);
  Problem b = a;
  ours.both(a);
  own.both(b);
  for (const auto& [name, array] : outputs) {
    EXPECT_LE(distance(a.*array, b.*array), bound * std::max(1.0, largest(b.*array))) << name;
  }
}

TEST(gpu_attention, one_pass_adds_to_the_state) {
  Runner ours("cuda-one-pass");
  expect_adds_to_the_state(ours, 1e-4, 46);
}

TEST(gpu_cudnn, adds_to_the_state) {
  Runner ours("cudnn");
  if (!has_cudnn(ours)) GTEST_SKIP() << "needs cuDNN: " << kernels::cuda::describe_cudnn();
  expect_adds_to_the_state(ours, 0.02, 45);
}

/// p in every backend that takes it; the outputs within `bound` of the largest number of `exact`.
void expect_equal(const Problem& p, const Problem& exact, double bound) {
  Problem like = p;
  const auto backends = Runner::backends(like);
  EXPECT_FALSE(backends.empty());
  for (const std::string& backend : backends) {
    Runner ours(backend);
    Problem copy = p;
    ours.both(copy);
    for (const auto& [name, array] : outputs) {
      EXPECT_LE(distance(copy.*array, exact.*array), bound * std::max(1.0, largest(exact.*array)))
          << name << ", " << backend;
    }
  }
}

TEST(gpu_attention, kernels_for_any_type_match_in_f64_and_f32) {
  Runner reference("reference");
  std::mt19937_64 rng(3);
  for (int round = 0; round < 16; ++round) {
    const DType t = round % 2 ? DType::f32 : DType::f64;
    Problem p = problem_of_any_shape(rng, t, 120, 200);
    p.softcap = round % 4 == 3 ? 3 : 0;
    p.randomise(rng);
    Problem exact = p.oracle();
    reference.both(exact);
    SCOPED_TRACE(::testing::Message() << "round " << round);
    expect_equal(p, exact, t == DType::f64 ? 1e-12 : 2e-5);
  }
}

TEST(gpu_attention, kernels_for_any_shape_take_16_bits_that_the_others_refuse) {
  Runner reference("reference");
  std::mt19937_64 rng(4);
  for (const DType t : {DType::bf16, DType::f16}) {
    Problem p(t, {70, 90, 4, 2, 36, 20}, causal(70, 90), 1);
    p.randomise(rng);
    Problem host = p;
    reference.both(host);
    SCOPED_TRACE(name_of(t));
    expect_equal(p, host, 2e-5);
  }
}

TEST(gpu_attention, tiles_in_any_cut_add_up_to_the_whole) {
  Runner ours("cuda"), reference("reference");
  std::mt19937_64 rng(9);
  Problem whole(DType::bf16, {300, 420, 4, 2, 128, 128}, causal(300, 420));
  whole.randomise(rng);
  Problem exact = whole.oracle();
  reference.both(exact);
  ours.both(whole);
  Problem cut = whole;
  cut.o.fill(0);
  cut.lse.fill(-infinity);
  const std::int64_t cuts[] = {0, 37, 200, 201, 420};
  const auto tile = [&](std::size_t i) {
    const Range keys{cuts[i], cuts[i + 1]};
    Problem t(DType::bf16, {300, keys.size(), 4, 2, 128, 128}, tile_of(cut.mask, {0, 300}, keys));
    t.q = cut.q;
    t.go = cut.go;
    t.k.each([&](auto r, auto h, auto c) { t.k.set(cut.k.get(r + keys.begin, h, c), r, h, c); });
    t.v.each([&](auto r, auto h, auto c) { t.v.set(cut.v.get(r + keys.begin, h, c), r, h, c); });
    return t;
  };
  for (std::size_t i = 0; i < 4; ++i) {
    Problem t = tile(i);
    t.o = cut.o;
    t.lse = cut.lse;
    ours.forward(t);
    cut.o = t.o;
    cut.lse = t.lse;
  }
  const double once = distance(whole.o, exact.o), parts = distance(cut.o, exact.o);
  EXPECT_LE(parts, 2 * once + 1e-6) << "forward in four tiles";
  EXPECT_LE(distance(cut.lse, exact.lse), 2 * distance(whole.lse, exact.lse) + 1e-5);
  cut.dq.fill(0);
  for (std::size_t i = 0; i < 4; ++i) {
    Problem t = tile(i);
    t.lse = whole.lse;
    t.delta = whole.delta;
    t.dq = cut.dq;
    ours.backward(t);
    cut.dq = t.dq;
  }
  EXPECT_LE(distance(cut.dq, exact.dq), 2 * distance(whole.dq, exact.dq) + 1e-6);
  fmt::print("error of o in one tile {:.2e}, in four {:.2e}\n", once, parts);
}

TEST(gpu_attention, twenty_runs_are_bitwise_equal) {
  Runner ours("cuda");
  std::mt19937_64 rng(2);
  Problem start(DType::bf16, {700, 900, 8, 2, 128, 128}, random_mask(rng, 700, 900));
  start.randomise(rng);
  Problem first = start;
  ours.both(first);
  for (int run = 1; run < 20; ++run) {
    Problem again = start;
    ours.both(again);
    for (const auto& [name, array] : outputs) {
      ASSERT_TRUE((again.*array).same_bits(first.*array)) << name << " in run " << run;
    }
  }
}

}  // namespace
}  // namespace tessera::testing

// SPDX-License-Identifier: Apache-2.0
// Attention on the device at its edges: rows without keys, memory that nobody may look at, extreme
// logits, lists prepared beforehand, capture of a pass in a graph.
#include <cuda_runtime_api.h>

#include <functional>

#include "base/error.hpp"
#include "validation/gpu/device.hpp"

namespace tessera::testing {
namespace {

/// Rows of queries and keys that no band touches hold NaN.
void poison(Problem& p) {
  const std::int64_t m = p.q.shape()[0], n = p.k.shape()[0];
  for (std::int64_t i = 0; i < m; ++i) {
    if (row_sees(p.mask, i)) continue;
    for (Array* x : {&p.q, &p.go}) {
      for (std::int64_t h = 0; h < x->shape()[1]; ++h) {
        for (std::int64_t c = 0; c < x->shape()[2]; ++c) x->set(nan, i, h, c);
      }
    }
  }
  for (std::int64_t j = 0; j < n; ++j) {
    if (key_seen(p.mask, m, j)) continue;
    for (Array* x : {&p.k, &p.v}) {
      for (std::int64_t h = 0; h < x->shape()[1]; ++h) {
        for (std::int64_t c = 0; c < x->shape()[2]; ++c) x->set(nan, j, h, c);
      }
    }
  }
}

/// `backend` has implementations here; cuDNN may be missing.
bool offers(const Runner& runner, std::string_view backend) {
  return std::ranges::any_of(runner.registry().list(),
                             [&](auto& i) { return i.backend == backend; });
}

TEST(gpu_limits, unseen_rows_may_hold_nan) {
  Runner owners("cuda"), one_pass("cuda-one-pass"), reference("reference");
  std::mt19937_64 rng(21);
  for (int round = 0; round < 24; ++round) {
    Runner& ours = round / 2 % 2 ? one_pass : owners;
    const int d = round % 2 ? 128 : 64;
    Problem p(round / 4 % 2 ? DType::f16 : DType::bf16, {330, 290, 4, 2, d, d},
              {{3, 100, 7, 150, -open, 3}, {140, 141, 200, 201}, {200, 310, 160, 280, -9, 40}});
    if (round > 1) p.mask = random_mask(rng, 330, 290);
    p.randomise(rng);
    poison(p);
    Problem host = p;
    ours.forward(p);
    reference.forward(host);
    host.delta = p.delta;  // rows of dO that are NaN would give a Delta of NaN
    ours.backward(p);
    host.lse = p.lse;
    reference.backward(host);
    EXPECT_LE(distance(p.o, host.o), 0.03) << "round " << round;
    EXPECT_LE(distance(p.lse, host.lse), 1e-3);
    for (const auto array : {&Problem::dq, &Problem::dk, &Problem::dv}) {
      EXPECT_TRUE(all_finite(p.*array)) << "round " << round;
      EXPECT_LE(distance(p.*array, host.*array), 0.02 * std::max(1.0, largest(host.*array)));
    }
  }
}

/// Every backend works on the visible box of a tile: what is outside may hold anything and stays.
TEST(gpu_limits, parts_of_a_tile_leave_the_rest_as_it_was) {
  Runner reference("reference");
  std::mt19937_64 rng(26);
  const ops::Band masks[] = {{0, 300, 0, 150},
                             {150, 300, 0, 300},
                             {1, 300, 0, 299, -open, -1},
                             {17, 217, 33, 233, -open, 16},
                             {40, 41 + 99, 201, 260}};
  Problem like(DType::bf16, {300, 300, 4, 2, 128, 128}, {masks[0]});
  for (const std::string& backend : Runner::backends(like)) {
    Runner ours(backend);
    for (const ops::Band& band : masks) {
      SCOPED_TRACE(::testing::Message() << backend << ", queries " << band.q0 << " to " << band.q1);
      Problem p(DType::bf16, {300, 300, 4, 2, 128, 128}, {band});
      p.randomise(rng);
      for (Array* x : {&p.o, &p.lse, &p.dq, &p.dk, &p.dv}) x->randomise(rng);
      poison(p);
      const Problem before = p;
      Problem exact = p.oracle();
      ours.both(p);
      reference.both(exact);
      const auto compare = [&](Array Problem::*array, int token, Range seen) {
        (p.*array).each([&](auto i, auto j, auto c) {
          const auto row = token == 0 ? i : j;
          const double x = (p.*array).get(i, j, c);
          if (row < seen.begin || row >= seen.end) {
            ASSERT_EQ(x, (before.*array).get(i, j, c)) << "row " << row << " was touched";
          } else {
            const double y = (exact.*array).get(i, j, c);
            ASSERT_NEAR(x, y, 0.02 * std::max(1.0, std::abs(y))) << "row " << row;
          }
        });
      };
      for (const auto array : {&Problem::o, &Problem::dq}) compare(array, 0, {band.q0, band.q1});
      for (const auto array : {&Problem::dk, &Problem::dv}) compare(array, 0, {band.k0, band.k1});
      compare(&Problem::lse, 1, {band.q0, band.q1});
    }
  }
}

/// Outputs that are said to be empty (Attributes::fresh) may hold anything.
TEST(gpu_limits, outputs_said_to_be_empty_are_written_and_not_read) {
  std::mt19937_64 rng(27);
  const std::vector<std::vector<ops::Band>> masks{
      {{0, 300, 0, 300, -open, 0}},
      {{0, 300, 0, 150}},
      {{150, 300, 0, 300}},
      {{0, 120, 0, 120, -open, 0}, {120, 300, 120, 300, -open, 0}}};
  const int wanted[] = {5, 3, 2, 5};  // o and lse, dq; dk and dv
  for (const char* backend : {"cuda", "cuda-one-pass", "cudnn"}) {
    Runner cleared(backend), told(backend);
    if (!offers(cleared, backend)) continue;
    told.use_fresh();
    for (std::size_t i = 0; i < masks.size(); ++i) {
      if (std::string_view(backend) == "cudnn" && masks[i].size() > 1) continue;
      SCOPED_TRACE(::testing::Message() << backend << ", mask " << i);
      Problem p(DType::bf16, {300, 300, 4, 2, 128, 128}, masks[i]);
      p.randomise(rng);
      Problem q = p;
      const int before = told.num_fresh();
      cleared.both(p);
      told.both(q);
      if (std::string_view(backend) == "cuda") {
        EXPECT_EQ(told.num_fresh() - before, wanted[i]);
      }
      for (const auto array :
           {&Problem::o, &Problem::lse, &Problem::dq, &Problem::dk, &Problem::dv}) {
        EXPECT_LE(distance(q.*array, p.*array), 1e-2 * std::max(1.0, largest(p.*array)));
      }
    }
    EXPECT_GT(told.num_fresh(), 0) << backend;
  }
}

TEST(gpu_limits, empty_rows_and_tiles_leave_the_state_as_it_was) {
  Runner ours("cuda");
  std::mt19937_64 rng(22);
  Problem p(DType::bf16, {300, 300, 2, 2, 128, 128}, {{150, 160, 20, 30}});
  p.randomise(rng);
  p.o.randomise(rng);
  p.lse.fill(0.5);
  const Problem before = p;
  ours.forward(p);
  for (std::int64_t i = 0; i < 300; ++i) {
    const bool same =
        p.o.get(i, 1, 5) == before.o.get(i, 1, 5) && p.lse.get(1, i) == before.lse.get(1, i);
    EXPECT_EQ(same, i < 150 || i >= 160) << "row " << i;
  }
  p = before;
  p.mask.clear();
  ours.both(p);
  EXPECT_TRUE(p.o.same_bits(before.o));
  EXPECT_TRUE(p.dq.same_bits(before.dq) && p.dk.same_bits(before.dk));
}

TEST(gpu_limits, a_row_without_keys_keeps_minus_infinity) {
  Runner ours("cuda");
  std::mt19937_64 rng(23);
  Problem p(DType::bf16, {128, 256, 1, 1, 64, 64}, {{64, 128, 0, 256}});
  p.randomise(rng);
  ours.both(p);
  for (std::int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(p.lse.get(0, i), -infinity);
    EXPECT_EQ(p.o.get(i, 0, 3), 0);
    EXPECT_EQ(p.dq.get(i, 0, 3), 0);
  }
  EXPECT_TRUE(all_finite(p.dk) && all_finite(p.dv) && all_finite(p.dq));
}

TEST(gpu_limits, equal_logits_give_the_closed_form) {
  Runner ours("cuda");
  Problem p(DType::bf16, {130, 257, 2, 1, 128, 128}, {{0, 130, 0, 257}});
  p.q.fill(0.25);
  p.k.fill(0.5);
  p.v.fill(2);
  ours.forward(p);
  const double expected = p.scale * 128 * 0.125 + std::log(257.0);
  for (std::int64_t i = 0; i < 130; ++i) {
    ASSERT_NEAR(p.lse.get(1, i), expected, 1e-5);
    ASSERT_NEAR(p.o.get(i, 1, 77), 2, 1e-2);
  }
}

TEST(gpu_limits, huge_logits_stay_finite) {
  Runner ours("cuda"), reference("reference");
  std::mt19937_64 rng(24);
  Problem p(DType::bf16, {200, 200, 1, 1, 128, 128}, {{0, 200, 0, 200, -open, 0}});
  for (Array* x : {&p.q, &p.k}) x->randomise(rng, 100);
  for (Array* x : {&p.v, &p.go}) x->randomise(rng);
  Problem exact = p.oracle();
  reference.both(exact);
  ours.both(p);
  for (const auto array : {&Problem::o, &Problem::dq, &Problem::dk, &Problem::dv}) {
    EXPECT_TRUE(all_finite(p.*array));
  }
  EXPECT_LE(distance(p.o, exact.o), 0.05);
}

/// 150 keys fill a block and a part of one: the scores of keys that are not there are 0, which
/// beside an lse of -357 would be weights of infinity.
TEST(gpu_limits, keys_that_do_not_exist_have_no_weight) {
  Runner reference("reference");
  std::mt19937_64 rng(28);
  Problem p(DType::bf16, {128, 150, 2, 1, 128, 128}, {{0, 128, 0, 150}});
  p.q.fill(8);
  p.k.fill(-4);
  for (Array* x : {&p.v, &p.go}) x->randomise(rng);
  Problem exact = p.oracle();
  reference.both(exact);
  EXPECT_LT(exact.lse.get(0, 0), -350);
  for (const std::string& backend : Runner::backends(p)) {
    Problem q = p;
    Runner(backend).both(q);
    for (const auto array : {&Problem::o, &Problem::dq, &Problem::dk, &Problem::dv}) {
      EXPECT_TRUE(all_finite(q.*array)) << backend;
      EXPECT_LE(distance(q.*array, exact.*array), 0.02 * std::max(1.0, largest(exact.*array)))
          << backend;
    }
  }
}

TEST(gpu_limits, what_no_kernel_takes_is_refused_by_name) {
  Runner ours("cuda");
  Budget budget;
  Array q(DType::bf16, {4, 2, 600}), o(DType::f32, {4, 2, 600}), lse(DType::f32, {2, 4, 1});
  const OnDevice x(budget, q), y(budget, o), z(budget, lse);
  const ops::Call call{"attention.forward", {x.ref(), x.ref(), x.ref(), y.ref(), z.ref()}, {}, {}};
  try {
    ours.registry().choose(call);
    FAIL() << "a head size of 600 was accepted";
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("bf16[4,2,600]"), std::string::npos) << e.message();
  }
  const ops::Call host{"tensor.zero", {q.ref()}, {}, {}};
  EXPECT_THROW(ours.registry().choose(host), Error) << "host memory on the device";
}

/// `gib` GiB of device memory are free.
bool has_free(std::size_t gib) {
  std::size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free >= gib << 30;
}
/// The n numbers of 16 bits from the first on are all `bits`.
void expect_all_are(const Buffer& b, std::int64_t first, std::int64_t n, std::uint16_t bits) {
  std::vector<std::uint16_t> host(static_cast<std::size_t>(n));
  memory::copy(host.data(), static_cast<const char*>(b.data()) + 2 * first, 2 * n);
  memory::synchronize();
  EXPECT_EQ(std::ranges::count(host, bits), n) << "numbers from " << first << " on";
}

/// 2^31 + 2^12 numbers of 16 bits, not aligned to 16 bytes: more than one move has.
TEST(gpu_limits, tensors_beyond_the_range_of_an_index_are_cut) {
  constexpr std::int64_t count = (std::int64_t{1} << 31) + 4096, window = 1024;
  if (!has_free(10)) GTEST_SKIP() << "less than 10 GiB of device memory are free";
  Budget budget;
  Runner ours("cuda");
  Buffer from(budget, 2 * (count + 2), "from", Space::cuda);
  Buffer to(budget, 2 * (count + 2), "to", Space::cuda);
  const auto inside = [&](const Buffer& b) {
    return dense(static_cast<char*>(b.data()) + 2, DType::bf16, {count, 1, 1}, Space::cuda);
  };
  const auto expect_all = [&](std::uint16_t bits) {
    for (const std::int64_t at : {std::int64_t{1}, count / 2 - window / 2, count + 1 - window})
      expect_all_are(to, at, window, bits);
    for (const std::int64_t at : {std::int64_t{0}, count + 1}) expect_all_are(to, at, 1, 0x4040);
  };
  cudaMemset(from.data(), 0x3f, static_cast<std::size_t>(from.bytes()));
  cudaMemset(to.data(), 0x40, static_cast<std::size_t>(to.bytes()));
  ours.registry().run({"tensor.copy", {inside(from), inside(to)}, {}, {}});
  expect_all(0x3f3f);
  ours.registry().run({"tensor.sum", {inside(from), inside(from), inside(to)}, {}, {}});
  expect_all(0x3fbf);  // twice as much: the exponent grows by 1
  ours.registry().run({"tensor.zero", {inside(to)}, {}, {}});
  expect_all(0);
}

/// One row of 2^32 + 2^12 numbers of 16 bits, aligned: elements have larger numbers than pieces.
TEST(gpu_limits, rows_of_more_than_four_billion_elements_are_cleared) {
  constexpr std::int64_t count = (std::int64_t{1} << 32) + 4096, window = 1024;
  if (!has_free(10)) GTEST_SKIP() << "less than 10 GiB of device memory are free";
  Budget budget;
  Buffer x(budget, 2 * count, "x", Space::cuda);
  cudaMemset(x.data(), 0x40, static_cast<std::size_t>(x.bytes()));
  const TensorRef all = dense(x.data(), DType::bf16, {count, 1, 1}, Space::cuda);
  Runner("cuda").registry().run({"tensor.zero", {all}, {}, {}});
  for (const std::int64_t at : {std::int64_t{0}, count / 2, count - 4096 - window, count - window})
    expect_all_are(x, at, window, 0);
}

/// Scores beyond the range of f32 give no weight to any key: an output that is written and not
/// summed is empty then, whatever the memory held.
TEST(gpu_limits, rows_without_weight_are_written_as_empty) {
  std::mt19937_64 rng(28);
  Problem p(DType::bf16, {200, 200, 2, 2, 128, 128}, {{0, 200, 0, 200, -open, open}});
  p.randomise(rng);
  p.q.fill(1e30);
  p.k.fill(-1e30);
  p.o.fill(std::numeric_limits<double>::quiet_NaN());
  p.lse.fill(7);
  Runner ours("cuda");
  ours.use_fresh();
  ours.forward(p);
  EXPECT_EQ(ours.num_fresh(), 2);
  for (const std::int64_t i : {0, 63, 64, 127, 128, 199}) {
    EXPECT_EQ(p.lse.get(1, i), -infinity) << "row " << i;
    EXPECT_EQ(p.o.get(i, 1, 77), 0) << "row " << i;
  }
}

/// Whether every query sees a key, and every key is seen, row by row of random bands, which may end
/// anywhere outside of the tile; it decides which outputs are written without a look at them.
TEST(gpu_limits, outputs_are_overwritten_when_all_their_rows_are_touched) {
  Runner ours("cuda");
  const auto overwrites = [&](const ops::Call& call, std::size_t argument) {
    const auto& all = ours.registry().list();
    const auto i = std::ranges::find_if(
        all, [&](const auto& x) { return x.op == call.name && x.backend == "cuda"; });
    return i->overwrites(call, argument);
  };
  std::mt19937_64 rng(26);
  const auto pick = [&](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(most - least + 1));
  };
  int yes[2]{}, no[2]{};
  for (int i = 0; i < 20000; ++i) {
    const std::int64_t m = pick(0, 9), n = pick(0, 9);
    std::vector<ops::Band> mask(static_cast<std::size_t>(pick(0, 4)));
    for (ops::Band& b : mask) {
      b = {pick(-2, 8), pick(0, 11), pick(-2, 8), pick(0, 11)};
      if (rng() % 2) b.lo = pick(-8, 8);
      if (rng() % 2) b.hi = pick(-8, 8);
    }
    const TensorRef q = dense(nullptr, DType::bf16, {m, 1, 64}, Space::cuda);
    const TensorRef k = dense(nullptr, DType::bf16, {n, 1, 64}, Space::cuda);
    bool rows = m > 0, keys = n > 0;
    for (std::int64_t r = 0; r < m; ++r) rows = rows && row_sees(mask, r);
    for (std::int64_t c = 0; c < n; ++c) {
      // Queries beyond the tile count as they do for the rows: a mask is cut to its tile.
      keys = keys && std::ranges::any_of(mask, [&](const ops::Band& b) {
               for (std::int64_t r = b.q0; r < b.q1; ++r) {
                 const Range seen = b.keys_of(r);
                 if (seen.begin <= c && c < seen.end) return true;
               }
               return false;
             });
    }
    const ops::Call forward{"attention.forward", {q, k, k, q, q}, {mask, 1, 0}, {}};
    const ops::Call backward{"attention.backward", {q, k, k, q, q, q, q, k, k}, {mask, 1, 0}, {}};
    EXPECT_EQ(overwrites(forward, 3), rows);
    EXPECT_EQ(overwrites(forward, 4), rows);
    EXPECT_EQ(overwrites(backward, 6), rows);
    EXPECT_EQ(overwrites(backward, 7), keys);
    EXPECT_FALSE(overwrites(backward, 4)) << "an input";
    ++(rows ? yes : no)[0];
    ++(keys ? yes : no)[1];
  }
  EXPECT_GT(std::min({yes[0], yes[1], no[0], no[1]}), 500);
}

/// The implementation of `backend` where it has the operator, else the registry's choice.
const ops::Implementation& pick(const ops::Registry& registry, std::string_view backend,
                                const ops::Call& call) {
  for (const ops::Implementation& i : registry.list()) {
    if (i.op == call.name && i.backend == backend && i.supports(call)) return i;
  }
  return registry.choose(call);
}

/// Captures what `pass` puts on the stream and runs the graph once.
void replay(cudaStream_t stream, const std::function<void()>& pass) {
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  pass();
  cudaGraph_t graph{};
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t exec{};
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  memory::synchronize(stream);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

/// Leaves the outputs of a captured forward and backward pass in `p`. It runs once before, as a
/// session's first pass does: libraries load their kernels at the first launch.
void captured_pass(const std::string& backend, Problem& p) {
  Runner fresh(backend);
  Budget budget;
  OnDevice q(budget, p.q), k(budget, p.k), v(budget, p.v), go(budget, p.go), o(budget, p.o),
      lse(budget, p.lse), delta(budget, p.delta), dq(budget, p.dq), dk(budget, p.dk),
      dv(budget, p.dv);
  cudaStream_t stream{};
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const std::vector<ops::Call> pass{
      {"attention.reset", {o.ref(), lse.ref()}, {}, {}, stream},
      {"tensor.zero", {dq.ref(), dk.ref(), dv.ref()}, {}, {}, stream},
      {"attention.forward",
       {q.ref(), k.ref(), v.ref(), o.ref(), lse.ref()},
       p.attributes(),
       {},
       stream},
      {"attention.delta", {o.ref(), go.ref(), delta.ref()}, {}, {}, stream},
      {"attention.backward",
       {q.ref(), k.ref(), v.ref(), go.ref(), lse.ref(), delta.ref(), dq.ref(), dk.ref(), dv.ref()},
       p.attributes(),
       {},
       stream}};
  for (const ops::Call& c : pass) {
    const auto& chosen = pick(fresh.registry(), backend, c);
    if (chosen.prepare) chosen.prepare(c);
  }
  const std::int64_t in_use = fresh.budget().in_use();
  const auto run = [&] {
    for (const ops::Call& c : pass) pick(fresh.registry(), backend, c).run(c);
  };
  run();
  memory::synchronize(stream);
  replay(stream, run);
  EXPECT_EQ(fresh.budget().in_use(), in_use) << "the pass allocated";
  for (OnDevice* x : {&o, &lse, &dq, &dk, &dv}) x->fetch();
  cudaStreamDestroy(stream);
}

/// After prepare() a pass allocates nothing, so it can be captured and replayed.
TEST(gpu_limits, a_prepared_pass_is_captured_and_replayed) {
  std::mt19937_64 rng(25);
  Problem like(DType::bf16, {512, 512, 4, 2, 128, 128}, {{0, 512, 0, 512, -open, 0}});
  for (const std::string& backend : Runner::backends(like)) {
    Runner ours(backend);
    for (const ops::Band& band :
         {ops::Band{0, 512, 0, 512, -open, 0}, ops::Band{256, 512, 0, 512}}) {
      SCOPED_TRACE(::testing::Message() << backend << ", queries from " << band.q0);
      Problem p(DType::bf16, {512, 512, 4, 2, 128, 128}, {band});
      p.randomise(rng);
      Problem direct = p;
      ours.both(direct);
      captured_pass(backend, p);
      for (const auto array :
           {&Problem::o, &Problem::lse, &Problem::dq, &Problem::dk, &Problem::dv}) {
        // These two add up dq in any order.
        const double bound = backend == "cudnn" ? 1e-2 : backend == "cuda-one-pass" ? 1e-5 : 0;
        EXPECT_LE(distance(p.*array, direct.*array), bound * largest(direct.*array));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing

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
    Problem p(DType::bf16, {330, 290, 4, 2, d, d},
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
      {"tensor.zero", {dq.ref()}, {}, {}, stream},
      {"tensor.zero", {dk.ref()}, {}, {}, stream},
      {"tensor.zero", {dv.ref()}, {}, {}, stream},
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

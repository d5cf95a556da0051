// SPDX-License-Identifier: Apache-2.0
// Faults that users of similar systems met, tried on every device backend that takes the call; each
// test is named after its entry in the list of field reports. Most use Q = 0, so that a row of the
// output is the mean of the keys it sees.
#include <fmt/format.h>

#include <functional>

#include "memory/stream.hpp"
#include "validation/gpu/device.hpp"

namespace tessera::testing {
namespace {

/// One head of 128, Q = 0, K = 1, V[i] = i in all places, dO = 1. Up to 256 keys, which bf16 holds.
Problem counting(std::int64_t m, std::int64_t n, std::vector<ops::Band> mask) {
  Problem p(DType::bf16, {m, n, 1, 1, 128, 128}, std::move(mask));
  p.k.fill(1);
  p.go.fill(1);
  p.v.each([&](auto i, auto h, auto c) { p.v.set(static_cast<double>(i), i, h, c); });
  return p;
}

/// Calls `body` with a runner and the fresh problem for each backend that takes it.
void on_every_backend(const Problem& p, const std::function<void(Runner&, Problem)>& body) {
  Problem like = p;
  const std::vector<std::string> backends = Runner::backends(like);
  ASSERT_FALSE(backends.empty());
  for (const std::string& backend : backends) {
    SCOPED_TRACE(backend);
    Runner runner(backend);
    body(runner, p);
  }
}

/// First and last place of each row.
void expect_rows(const Problem& p, const std::vector<double>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (const std::int64_t c : {0, 127})
      EXPECT_NEAR(p.o.get(static_cast<std::int64_t>(i), 0, c), rows[i], 1e-4) << "row " << i;
}

TEST(gpu_field_reports, OB_007_mask_follows_global_positions) {
  on_every_backend(counting(4, 8, {{0, 4, 0, 8, -open, 4}}), [](Runner& ours, Problem late) {
    ours.forward(late);  // queries 4 to 7 of 8
    expect_rows(late, {2.0, 2.5, 3.0, 3.5});
  });
  // Five queries whose last two are those of the two keys.
  on_every_backend(counting(5, 2, {{0, 5, 0, 2, -open, -3}}), [](Runner& ours, Problem early) {
    ours.both(early);
    expect_rows(early, {0, 0, 0, 0, 0.5});
    for (std::int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(early.lse.get(0, i) == -infinity, i < 3) << "row " << i;
    }
    for (std::int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(early.dq.get(i, 0, 5), 0) << "row " << i;
    }
    EXPECT_TRUE(all_finite(early.dq) && all_finite(early.dk) && all_finite(early.dv));
  });
}

TEST(gpu_field_reports, OB_008_window_counts_the_token_itself) {
  on_every_backend(counting(16, 16, {{0, 16, 0, 16, -3, 0}}), [](Runner& ours, Problem p) {
    ours.forward(p);
    EXPECT_NEAR(p.o.get(10, 0, 64), 8.5, 1e-4);
    EXPECT_NEAR(p.lse.get(0, 10), std::log(4.0), 1e-5);
  });
}

TEST(gpu_field_reports, OB_010_OB_025_a_call_does_not_see_the_shape_or_mask_of_the_one_before) {
  // Lists of blocks and plans of libraries are kept by the shape of a call.
  std::mt19937_64 rng(10);
  const auto causal = [&](std::int64_t n, int kv_heads) {
    Problem p(DType::bf16, {n, n, 12, kv_heads, 128, 128}, {{0, n, 0, n, -open, 0}});
    p.randomise(rng);
    return p;
  };
  std::vector<Problem> problems{causal(1024, 3), causal(512, 3), causal(1024, 12), causal(1024, 3)};
  problems.push_back(problems[0]);
  problems.back().mask = {{0, 1024, 0, 1024}};
  on_every_backend(problems[0], [&](Runner& ours, const Problem&) {
    for (std::size_t i = 0; i < problems.size(); ++i) {
      Problem p = problems[i], alone = problems[i];
      Runner fresh(Runner::backends(p).front());
      ours.both(p);
      fresh.both(alone);
      for (const auto array : {&Problem::o, &Problem::dq, &Problem::dk, &Problem::dv})
        EXPECT_LE(distance(p.*array, alone.*array), 0.01 * largest(alone.*array)) << "call " << i;
    }
  });
}

TEST(gpu_field_reports, OB_011_only_listed_tiles_are_attended) {
  on_every_backend(counting(8, 8, {{0, 4, 0, 4}, {4, 8, 4, 8}}), [](Runner& ours, Problem p) {
    ours.forward(p);
    expect_rows(p, {1.5, 1.5, 1.5, 1.5, 5.5, 5.5, 5.5, 5.5});
  });
}

TEST(gpu_field_reports, OB_013_queries_in_several_slices_are_merged) {
  const std::vector<ops::Band> slices{{0, 4, 0, 2}, {0, 4, 2, 4}};
  on_every_backend(counting(4, 4, slices), [](Runner& ours, const Problem& start) {
    Problem first = start;
    ours.forward(first);
    expect_rows(first, {1.5, 1.5, 1.5, 1.5});
    for (int run = 0; run < 20; ++run) {
      Problem again = start;
      ours.forward(again);
      EXPECT_TRUE(again.o.same_bits(first.o)) << "run " << run;
    }
  });
  // The slices as calls of their own, which add to one state.
  for (const std::size_t begin : {0, 1}) {
    on_every_backend(counting(4, 4, {slices[begin]}), [&](Runner& ours, Problem p) {
      ours.forward(p);
      p.mask = {slices[1 - begin]};
      ours.forward(p);
      expect_rows(p, {1.5, 1.5, 1.5, 1.5});
    });
  }
}

TEST(gpu_field_reports, OB_014_lengths_off_the_block_with_a_score_function_stay_finite) {
  Runner reference("reference");
  for (const std::int64_t n : {17, 257, 1025}) {
    std::mt19937_64 rng(5);
    Problem p(DType::bf16, {n, n, 1, 1, 128, 128}, {{0, n, 0, n, -open, 0}});
    p.randomise(rng);
    p.softcap = 5;
    Problem exact = p.oracle();
    reference.both(exact);
    on_every_backend(p, [&](Runner& ours, Problem q) {
      ours.both(q);
      for (const auto array : {&Problem::o, &Problem::dq, &Problem::dk, &Problem::dv}) {
        EXPECT_TRUE(all_finite(q.*array)) << "length " << n;
        EXPECT_LE(distance(q.*array, exact.*array), 0.02 * largest(exact.*array)) << "length " << n;
      }
    });
  }
}

/// A state (o, lse) of one row.
struct State {
  Array o{DType::f32, {1, 1, 128}}, lse{DType::f32, {1, 1, 1}};
  State(double out, double log) { o.fill(out), lse.fill(log); }
};

TEST(gpu_field_reports, OB_017_merge_with_an_empty_side_keeps_the_other) {
  Runner ours("cuda");
  const auto merged = [&](State a, State b) {
    ours.run("attention.merge", {&b.o, &b.lse, &a.o, &a.lse});
    return a;
  };
  for (const State& s :
       {merged(State(0, -infinity), State(0.5, -2)), merged(State(0.5, -2), State(0, -infinity))}) {
    EXPECT_FLOAT_EQ(static_cast<float>(s.o.get(0, 0, 99)), 0.5f);
    EXPECT_FLOAT_EQ(static_cast<float>(s.lse.get(0)), -2.0f);
  }
  const State nothing = merged(State(0, -infinity), State(0, -infinity));
  EXPECT_EQ(nothing.o.get(0, 0, 99), 0);
  EXPECT_EQ(nothing.lse.get(0), -infinity);
}

TEST(gpu_field_reports, OB_018_large_lse_does_not_overflow_and_other_rows_stay) {
  Runner runner("cuda");
  State s(0, 1000), other(1, 1001);
  runner.run("attention.merge", {&other.o, &other.lse, &s.o, &s.lse});
  EXPECT_NEAR(s.lse.get(0), 1001.31326, 1e-3);
  EXPECT_NEAR(s.o.get(0, 0, 99), 0.731059, 1e-5);
  Problem half = counting(4, 4, {{2, 4, 0, 4}});
  half.lse.fill(1000), half.o.fill(0.25);
  on_every_backend(half, [](Runner& ours, Problem p) {
    ours.forward(p);
    for (std::int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(p.lse.get(0, i), 1000) << "row " << i;
      EXPECT_EQ(p.o.get(i, 0, 99), 0.25) << "row " << i;
    }
  });
}

TEST(gpu_field_reports, OB_020_fully_masked_row_is_zero_not_the_mean) {
  Problem two = counting(2, 2, {{1, 2, 0, 2}});
  two.v.each([&](auto i, auto h, auto c) { two.v.set(i == 0 ? 1 : 3, i, h, c); });
  on_every_backend(two, [](Runner& ours, Problem p) {
    ours.both(p);
    expect_rows(p, {0, 2});
    EXPECT_EQ(p.lse.get(0, 0), -infinity);
    for (const std::int64_t key : {0, 1}) EXPECT_NEAR(p.dv.get(key, 0, 99), 0.5, 1e-4);
  });
}

TEST(gpu_field_reports, OB_021_empty_row_leaves_all_gradients_finite) {
  // Keys 2 and 3 are padding; queries 0 to 2 see keys 0 and 1 up to distance 2, query 3 none.
  std::mt19937_64 rng(21);
  Problem start(DType::bf16, {4, 4, 1, 1, 128, 128}, {{0, 3, 0, 2, -2, open}});
  start.randomise(rng);
  for (std::int64_t c = 0; c < 128; ++c) start.go.set(0, 3, 0, c);
  on_every_backend(start, [](Runner& ours, Problem p) {
    Problem without = of_first_queries(p, 3);
    ours.both(p);
    ours.both(without);
    EXPECT_TRUE(all_finite(p.dq) && all_finite(p.dk) && all_finite(p.dv));
    for (std::int64_t c = 0; c < 128; ++c) EXPECT_EQ(p.dq.get(3, 0, c), 0);
    for (const auto array : {&Problem::dq, &Problem::dk, &Problem::dv})
      EXPECT_LE(distance(without.*array, p.*array), 1e-5 * largest(p.*array));
  });
}

TEST(gpu_field_reports, OB_023_every_option_reaches_backward) {
  Runner reference("reference");
  std::mt19937_64 rng(23);
  const std::vector<ops::Band> full{{0, 192, 0, 192}};
  Problem plain(DType::bf16, {192, 192, 2, 1, 128, 128}, full);
  plain.randomise(rng);
  Problem usual = plain.oracle();
  reference.both(usual);
  for (int option = 0; option < 4; ++option) {
    Problem p = plain;
    if (option == 0) p.scale *= 3;
    if (option == 1) p.mask = {{0, 192, 0, 192, -2, 0}};
    if (option == 2) p.mask = {{0, 70, 0, 70}, {70, 192, 70, 192}};
    if (option == 3) p.softcap = 0.5;
    Problem exact = p.oracle();
    reference.both(exact);
    on_every_backend(p, [&](Runner& ours, Problem q) {
      ours.both(q);
      for (const auto array : {&Problem::dq, &Problem::dk, &Problem::dv}) {
        const double most = largest(exact.*array);
        EXPECT_LE(distance(q.*array, exact.*array), 0.02 * most) << "option " << option;
        EXPECT_GE(distance(usual.*array, exact.*array), 0.1 * most) << "the option does nothing";
      }
    });
  }
}

/// A host array on the device with its tokens `stride` elements apart.
class FarApart {
 public:
  FarApart(Budget& budget, Array& host, std::int64_t stride)
      : host_(host),
        ref_(host.ref()),
        row_(ref_.shape[1] * ref_.shape[2] * size_of(ref_.dtype)),
        step_(stride * size_of(ref_.dtype)),
        buffer_(budget, (ref_.shape[0] - 1) * step_ + row_, "far apart", Space::cuda) {
    ref_.data = buffer_.data();
    ref_.space = Space::cuda;
    ref_.stride[0] = stride;
    rows([&](std::byte* near, std::byte* far) { memory::copy(far, near, row_); });
  }
  const TensorRef& ref() const { return ref_; }
  void fetch() {
    rows([&](std::byte* near, std::byte* far) { memory::copy(near, far, row_); });
  }

 private:
  void rows(const std::function<void(std::byte*, std::byte*)>& body) {
    for (std::int64_t i = 0; i < ref_.shape[0]; ++i)
      body(static_cast<std::byte*>(host_.ref().data) + i * row_,
           static_cast<std::byte*>(buffer_.data()) + i * step_);
    memory::synchronize();
  }
  Array& host_;
  TensorRef ref_;
  std::int64_t row_, step_;  // bytes
  Buffer buffer_;
};

/// Runs an operator of a backend on tensors whose tokens lie far apart; statistics ([head, token])
/// stay as they are. False: the backend does not take such tensors.
bool run_far_apart(const Runner& runner, std::string_view op, const std::string& backend,
                   const std::vector<Array*>& arrays, const ops::Attributes& attributes) {
  Budget budget;
  std::vector<std::unique_ptr<FarApart>> far;
  std::vector<std::unique_ptr<OnDevice>> statistics;
  ops::Call call{op, {}, attributes, {}};
  for (Array* a : arrays) {
    if (a->shape()[2] == 1) {
      call.args.push_back(statistics.emplace_back(std::make_unique<OnDevice>(budget, *a))->ref());
      continue;
    }
    // Row 239 begins beyond 2^31 elements.
    far.push_back(std::make_unique<FarApart>(budget, *a, 9'000'064));
    call.args.push_back(far.back()->ref());
  }
  for (const ops::Implementation& i : runner.registry().list()) {
    if (i.op != op || i.backend != backend || !i.supports(call)) continue;
    i.run(call);
    memory::synchronize();
    for (auto& x : far) x->fetch();
    for (auto& x : statistics) x->fetch();
    return true;
  }
  return false;
}

TEST(gpu_field_reports, OB_027_offsets_beyond_32_bits) {
  const std::int64_t n = 300, wanted = std::int64_t{80} << 30;
  if (memory::device_memory()[0] < wanted)
    GTEST_SKIP() << "needs 80 GiB of device memory, free are " << memory::device_memory()[0];
  std::mt19937_64 rng(27);
  Problem start(DType::bf16, {n, n, 2, 1, 128, 128}, {{0, n, 0, n, -open, 0}});
  start.randomise(rng);
  Runner all("cudnn");
  std::string taken;
  for (const char* backend : {"cuda", "cuda-one-pass", "cuda-plain", "cudnn"}) {
    SCOPED_TRACE(backend);
    Problem near = start, far = start;
    const std::vector<Array*> forward{&far.q, &far.k, &far.v, &far.o, &far.lse};
    const std::vector<Array*> backward{&far.q,     &far.k,  &far.v,  &far.go, &far.lse,
                                       &far.delta, &far.dq, &far.dk, &far.dv};
    Runner(backend).both(near);
    const bool has_forward = std::string_view(backend) != "cuda-one-pass";
    if (!run_far_apart(all, "attention.forward", has_forward ? backend : "cuda", forward,
                       far.attributes()) ||
        !run_far_apart(all, "attention.delta", "cuda", {&far.o, &far.go, &far.delta}, {}) ||
        !run_far_apart(all, "attention.backward", backend, backward, far.attributes()))
      continue;
    taken += fmt::format("{} ", backend);
    for (const auto array : {&Problem::o, &Problem::lse, &Problem::dq, &Problem::dk, &Problem::dv})
      EXPECT_LE(distance(near.*array, far.*array), 0.01 * largest(near.*array));
  }
  fmt::print("tokens 9,000,064 elements apart are taken by: {}\n", taken);
  EXPECT_NE(taken.find("cuda-plain"), std::string::npos) << "the kernels for any shape";
  Array x(DType::f32, {n, 2, 128}), y(DType::f32, {n, 2, 128});
  x.randomise(rng);
  ASSERT_TRUE(run_far_apart(all, "tensor.copy", "cuda", {&x, &y}, {}));
  EXPECT_TRUE(x.same_bits(y));
}

TEST(gpu_field_reports, OB_117_nothing_to_do_is_done_at_once) {
  // A rank without queries, without keys, without either: no launch of zero blocks.
  for (const auto& [m, n] : {std::pair{0, 64}, {64, 0}, {0, 0}}) {
    SCOPED_TRACE(::testing::Message() << m << " queries, " << n << " keys");
    Problem start(DType::bf16, {m, n, 2, 1, 128, 128}, {{0, m, 0, n}});
    for (Array* x : {&start.o, &start.dq, &start.dk, &start.dv}) x->fill(0.5);
    start.lse.fill(0.25);
    on_every_backend(start, [](Runner& ours, Problem p) {
      const Problem before = p;
      ours.forward(p);
      ours.backward(p);
      for (const auto array :
           {&Problem::o, &Problem::lse, &Problem::dq, &Problem::dk, &Problem::dv})
        EXPECT_TRUE((p.*array).same_bits(before.*array));
    });
  }
  Runner cuda("cuda");
  Array none(DType::f32, {0, 2, 128}), statistic(DType::f32, {2, 0, 1});
  Array sink(DType::f32, {2, 1, 1}), slope(DType::f32, {2, 1, 1});
  slope.fill(3);
  cuda.run("attention.merge", {&none, &statistic, &none, &statistic});
  cuda.run("attention.reset", {&none, &statistic});
  cuda.run("attention.delta", {&none, &none, &statistic});
  cuda.run("attention.sink_grad", {&sink, &statistic, &statistic, &slope});
  cuda.run("tensor.zero", {&none});
  cuda.run("tensor.copy", {&none, &none});
  cuda.run("tensor.add", {&none, &none});
  for (const std::int64_t head : {0, 1}) EXPECT_EQ(slope.get(head), 3) << "a sum over no rows";
}

}  // namespace
}  // namespace tessera::testing

// SPDX-License-Identifier: Apache-2.0
// Streams of a device run: whatever two steps, halves of steps or messages touch the same memory,
// one to write it, must be in the order of the plan. Proved of every program of attention, for all
// its ranks, with steps cut by heads as on a GPU, clearings left out and outputs rounded by the
// last operators as they are there, by what each stream has seen of the others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "attention_cases.hpp"
#include "exec/order.hpp"
#include "exec/stores.hpp"
#include "plan/builder.hpp"
#include "plan/graph.hpp"
#include "plan/region.hpp"
#include "plan_queues.hpp"

namespace tessera::test {
namespace {

using exec::Cut;
using exec::LaneStep;
using exec::Ordered;

/// By heads, as the operators of a GPU are cut: dimension 1, of statistics of attention 0.
Cut cut_by_heads(const plan::Plan& plan, const plan::Step& s) {
  Cut out;
  for (const plan::Use& use : plan.uses(s)) {
    const plan::Buffer& b = plan.buffers[static_cast<std::size_t>(use.buffer)];
    const bool heads_first =
        (b.statistic || b.shape[1] * b.shape[2] == 1) && s.work.op.starts_with("attention.");
    const Range heads = heads_first ? use.d0 : use.d1;
    if (heads.size() == 0 || heads.size() % 2 != 0) return {};
    out.push_back(heads_first ? 0 : 1);
  }
  return out;
}

bool clears(const plan::Step& s) {
  return s.work.op == "tensor.zero" || s.work.op == "attention.reset";
}

/// The next step that touches the buffer is a tile which updates just this part.
bool written_next(const plan::Plan& plan, const plan::Use& use, std::size_t after) {
  for (std::size_t i = after + 1; i < plan.steps.size(); ++i)
    for (const plan::Use& u : plan.uses(plan.steps[i]))
      if (u.buffer == use.buffer)
        return plan.steps[i].index.kind == plan::Index::Kind::tile &&
               plan.steps[i].queue == plan.steps[after].queue && u.access == plan::Access::update &&
               u.d0 == use.d0 && u.d1 == use.d1;
  return false;
}

/// Clearings that executors leave out where every operator can write, or some of them.
std::vector<char> skips(const plan::Plan& plan, bool all, std::mt19937& rng) {
  std::vector<char> out(plan.steps.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto uses = plan.uses(plan.steps[i]);
    out[i] =
        clears(plan.steps[i]) && (all || rng() % 2 == 0) &&
        std::ranges::all_of(uses, [&](const plan::Use& u) { return written_next(plan, u, i); });
  }
  return out;
}

/// What steps touch once the last operators round outputs: uses, each cut as this argument is.
struct Touched {
  struct Argument {
    plan::Use use;
    std::size_t cut_as;
  };
  std::vector<std::vector<Argument>> by_step;
  int stores = 0, whole_copies = 0;

  /// All operators can, or some.
  Touched(const plan::Plan& plan, bool all, std::mt19937& rng) {
    for (const plan::Step& s : plan.steps) {
      by_step.emplace_back();
      for (const plan::Use& use : plan.uses(s))
        by_step.back().push_back({use, by_step.back().size()});
    }
    const auto able = [&](std::int32_t, const plan::Use&) { return all || rng() % 4 > 0; };
    for (const exec::Store& s : exec::stores_of(plan, able)) {
      const auto last = static_cast<std::size_t>(s.last);
      by_step[last].push_back({s.to, ops::partial_output(plan.steps[last].work.op)});
      for (const auto& [argument, use] : s.arguments)
        by_step[static_cast<std::size_t>(s.copy)][argument].use = use;
      ++stores, whole_copies += s.arguments.back().second.d0.empty();
    }
  }
};

/// What streams and events make of an order: each stream knows how much of each other one it has
/// waited for. The second lane is the last stream.
class Streams {
 public:
  Streams(const Touched& touched, const std::vector<exec::QueueSteps>& queues,
          const std::vector<char>& skipped)
      : touched_(touched),
        queues_(queues),
        skipped_(skipped),
        seen_(queues.size() + 1, Seen(queues.size() + 1)) {}

  int unordered = 0;  ///< pairs that touch the same memory in no order
  int ordered = 0;    ///< pairs on different streams that do so in order
  int beside = 0;     ///< steps whose halves go on without a meeting of the lanes

  void run(const std::vector<Ordered>& all) {
    const std::size_t second = queues_.size();
    ASSERT_EQ(std::ranges::count_if(queues_, [](const auto& q) { return !q.comm; }), 1)
        << "one second lane is followed";
    std::vector<Seen> finished(all.size());
    bool forked = false;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Ordered& e = all[i];
      if (e.lane.join) meet(e.queue, seen_[second]);
      if (e.lane.fork) meet(second, seen_[e.queue]);
      forked |= e.lane.fork;
      // A stream that no event leads to would not be part of a captured graph.
      EXPECT_TRUE(forked || (!e.lane.split && !e.lane.join));
      for (const int on : e.waits) {
        ASSERT_LT(static_cast<std::size_t>(on), i) << "an event is awaited before it is recorded";
        EXPECT_TRUE(all[static_cast<std::size_t>(on)].awaited) << "an event that is not there";
        meet(e.queue, finished[static_cast<std::size_t>(on)]);
        if (e.lane.split) meet(second, finished[static_cast<std::size_t>(on)]);
      }
      beside += e.lane.split && !e.lane.join && !e.lane.fork;
      put(e, second);
      finished[i] = seen_[e.queue];
      if (!e.lane.split) continue;
      for (std::size_t s = 0; s <= second; ++s)
        finished[i][s] = std::max(finished[i][s], seen_[second][s]);
    }
  }

 private:
  using Seen = std::vector<int>;
  struct Part {
    std::size_t stream;
    int number;
    std::int32_t step;  ///< the first of its unit
    std::vector<plan::Use> uses;
  };

  void meet(std::size_t stream, const Seen& other) {
    for (std::size_t s = 0; s < other.size(); ++s)
      seen_[stream][s] = std::max(seen_[stream][s], other[s]);
  }
  void put(const Ordered& e, std::size_t second) {
    const exec::QueueSteps& q = queues_[e.queue];
    std::vector<plan::Use> halves[2];
    for (std::size_t i = e.unit.begin; i < e.unit.end; ++i) {
      const auto step = static_cast<std::size_t>(q.steps[i]);
      if (skipped_[step]) return;
      for (const auto& [use, cut_as] : touched_.by_step[step])
        for (const int half : {0, 1})
          halves[half].push_back(e.lane.split ? exec::half_of(use, e.cut[cut_as], half) : use);
    }
    const std::int32_t first = q.steps[e.unit.begin];
    put(e.queue, first, std::move(halves[0]));
    if (e.lane.split) put(second, first, std::move(halves[1]));
  }
  void put(std::size_t stream, std::int32_t step, std::vector<plan::Use> uses) {
    for (const Part& before : parts_) {
      bool same = false;
      for (const plan::Use& a : before.uses)
        for (const plan::Use& b : uses)
          same |= a.buffer == b.buffer &&
                  (a.access != plan::Access::read || b.access != plan::Access::read) &&
                  plan::Rect{a.d0, a.d1}.overlaps({b.d0, b.d1});
      if (!same) continue;
      EXPECT_LE(before.step, step) << "steps that touch the same memory have changed places";
      if (before.stream == stream) continue;
      (before.number <= seen_[stream][before.stream] ? ordered : unordered)++;
    }
    parts_.push_back({stream, ++seen_[stream][stream], step, std::move(uses)});
  }

  const Touched& touched_;
  const std::vector<exec::QueueSteps>& queues_;
  const std::vector<char>& skipped_;
  std::vector<Seen> seen_;  ///< by stream: parts of each stream that are before what comes
  std::vector<Part> parts_;
};

struct Sum {
  int plans = 0, ordered = 0, beside = 0, without_joins = 0, without_waits = 0;
  int stores = 0, whole_copies = 0;
};

void look(const plan::Program& program, std::mt19937& rng, Sum& sum) {
  const plan::Graph graph = plan::make_graph(program);
  for (std::size_t rank = 0; rank < program.plans.size(); ++rank) {
    const plan::Plan& plan = program.plans[rank];
    const auto queues = queues_of(graph, rank);
    double longest = 0;
    for (const plan::Step& s : plan.steps) longest = std::max(longest, s.work.flops);
    const bool all = rng() % 2 == 0;
    const std::vector<char> skipped = skips(plan, all, rng);
    exec::OrderRules rules{skipped, {}, all ? 0 : 0.5 * longest, rng() % 4 == 0};
    rules.cut = [&](std::size_t i) {
      return all || rng() % 4 > 0 ? cut_by_heads(plan, plan.steps[i]) : Cut{};
    };
    std::vector<Ordered> order = exec::order_of(plan, queues, rules);
    const Touched touched(plan, all, rng);
    sum.stores += touched.stores, sum.whole_copies += touched.whole_copies;
    Streams streams(touched, queues, skipped);
    streams.run(order);
    EXPECT_EQ(streams.unordered, 0) << program.name << ", rank " << rank;
    sum.ordered += streams.ordered, sum.beside += streams.beside, ++sum.plans;
    const auto unordered = [&] {
      Streams broken(touched, queues, skipped);
      broken.run(order);
      return broken.unordered > 0;
    };
    auto kept = order;
    for (Ordered& e : order) e.lane.join = false;
    sum.without_joins += unordered();
    order = std::move(kept);
    for (Ordered& e : order)
      if (e.lane.split) e.waits.clear();
    sum.without_waits += unordered();
  }
}

/// Links of one speed after another: what is sent when, and from which buffer, follows from it.
TEST(ExecLanes, Every_program_keeps_the_order_of_its_plan) {
  const std::vector<std::int64_t> docs{3, 7, 20, 1, 19};
  std::mt19937 rng(7);
  Sum sum;
  for (int n : {1, 2, 3, 4, 6, 8, 9})
    for (Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped, Layout::balanced}) {
      const MaskShape s{1, 50, 50};
      std::vector<Problem> problems{
          problem(s, full_mask(s), 48, 48, 4, 3, DType::bf16, layout),
          problem(s, causal_mask(s, false), 48, 24, 4, 4, DType::bf16, layout),
          problem(s, document_mask(s, docs, true), 48, 16, 4, 4, DType::bf16, layout)};
      problems[1].sink = true;
      const MaskShape two{2, 50, 50};
      problems.push_back(problem(two, window_mask(two, 5), 48, 48, 4, 4, DType::bf16, layout));
      problems.push_back(problem(s, causal_mask(s, false), 48, 48, 4, 4, DType::bf16, layout));
      for (const double rate : {1e8, 1e10}) {
        plan::Machine machine = test_machine();
        machine.intra = {1e-9, rate}, machine.inter = {1e-9, 0.25 * rate};
        for (const Problem& p : problems)
          for (const Scheme& x : schemes_for(p, n))
            for (Pass pass : {Pass::forward, Pass::backward})
              look(make_program(p, choose(p, x, n, pass, machine), n, pass, machine), rng, sum);
      }
    }
  EXPECT_GT(sum.without_joins, 0) << "the test would not see a meeting of lanes that is missing";
  EXPECT_GT(sum.without_waits, 0) << "the test would not see a wait that is missing";
  EXPECT_GT(sum.beside, 0);
  EXPECT_GT(sum.stores, sum.whole_copies);
  EXPECT_GT(sum.whole_copies, 0);
  fmt::print(
      "{} plans: {} accesses in order across streams, {} halved steps without a meeting, {} "
      "outputs stored by the last operator, {} with nothing left to copy\n",
      sum.plans, sum.ordered, sum.beside, sum.stores, sum.whole_copies);
}

/// A message is sent from x; x is cleared (left out, the only step that waits for the message, as
/// the builder has it) and filled by a tile. Or a second message waits for the clearing.
TEST(ExecLanes, Waits_of_steps_that_are_left_out_are_kept) {
  for (const bool awaited : {false, true}) {
    plan::Program program{"left out", {{"all", {{0, 1}}}}, std::vector<plan::Plan>(2), {}};
    plan::Plan& plan = program.plans[0];
    plan::Builder b(plan);
    const int compute = b.queue(plan::QueueKind::compute, "compute");
    const int comm = b.queue(plan::QueueKind::comm, "comm");
    const auto buffer = [&](const char* name) {
      return b.buffer({name, plan::Role::output, DType::f32, {4, 8, 1}});
    };
    const auto x = buffer("x"), y = buffer("y");
    b.compute(compute, "tile", {}, {"op", 9, 0}, {b.all(y, plan::Access::update)});
    b.send(comm, -1, "send", {}, 0, 1, 0, {b.all(x, plan::Access::read)});
    b.compute(compute, "clear", {}, {"op", 0, 0}, {b.all(x, plan::Access::write)});
    if (awaited) b.send(comm, -1, "send", {}, 0, 1, 1, {b.all(x, plan::Access::read)});
    b.compute(compute, "clear", {}, {"op", 0, 0}, {b.all(x, plan::Access::write)});
    b.compute(compute, "tile", {}, {"op", 9, 0}, {b.all(x, plan::Access::update)});
    const plan::Graph graph = plan::make_graph(program);
    const auto queues = queues_of(graph, 0);
    std::vector<char> skipped;
    for (const plan::Step& s : plan.steps) skipped.push_back(s.label == "clear");
    exec::OrderRules rules{skipped, {}, 0, false};
    rules.cut = [](std::size_t) { return Cut{1}; };
    const std::vector<Ordered> order = exec::order_of(plan, queues, rules);
    const Ordered& tile = order.back();
    EXPECT_TRUE(tile.lane.split);
    ASSERT_EQ(tile.waits.size(), 1U);
    EXPECT_EQ(tile.waits[0], awaited ? 3 : 1) << "the message that reads x last";
    if (awaited) {
      EXPECT_TRUE(order[2].awaited && order[2].lane.join) << "it stands for all before it";
      EXPECT_EQ(order[2].waits, std::vector<int>{1});
      EXPECT_TRUE(tile.lane.fork);
    }
    std::mt19937 rng(1);
    const Touched touched(plan, true, rng);
    Streams streams(touched, queues, skipped);
    streams.run(order);
    EXPECT_EQ(streams.unordered, 0);
  }
}

/// The first half of one step and the second of the next share rows, as when a scheme works on
/// slices of heads of one buffer.
TEST(ExecLanes, Halves_that_meet_make_the_lanes_meet) {
  for (const bool meet : {false, true}) {
    plan::Program program{"slices", {}, std::vector<plan::Plan>(1), {}};
    plan::Plan& plan = program.plans[0];
    plan::Builder b(plan);
    const int queue = b.queue(plan::QueueKind::compute, "compute");
    const auto x = b.buffer({"x", plan::Role::output, DType::f32, {4, 8, 1}});
    b.compute(queue, "one", {}, {}, {b.part(x, plan::Access::update, {0, 4}, {0, 8})});
    b.compute(queue, "two", {}, {}, {b.part(x, plan::Access::update, {0, 4}, {0, meet ? 4 : 8})});
    const std::vector<std::int32_t> steps{0, 1};
    const std::vector<Cut> cuts{{1}, {1}};
    const auto lanes = exec::lanes_of(plan, steps, cuts, 0);
    EXPECT_TRUE(lanes[0].split && lanes[0].fork && !lanes[0].join);
    EXPECT_EQ(lanes[1].join, meet);
    EXPECT_EQ(lanes[1].fork, meet);
  }
}

/// A short step is halved where the lanes are apart, and whole where they are not.
TEST(ExecLanes, Short_steps_go_beside_long_ones) {
  plan::Program program{"short", {}, std::vector<plan::Plan>(1), {}};
  plan::Plan& plan = program.plans[0];
  plan::Builder b(plan);
  const int queue = b.queue(plan::QueueKind::compute, "compute");
  const auto x = b.buffer({"x", plan::Role::output, DType::f32, {4, 8, 1}});
  const plan::Use use = b.part(x, plan::Access::update, {0, 4}, {0, 8});
  for (const double flops : {1.0, 9.0, 1.0}) b.compute(queue, "step", {}, {"op", flops, 0}, {use});
  const std::vector<std::int32_t> steps{0, 1, 2};
  const std::vector<Cut> cuts{{1}, {1}, {1}};
  const auto lanes = exec::lanes_of(plan, steps, cuts, 5);
  EXPECT_FALSE(lanes[0].split);
  EXPECT_TRUE(lanes[1].split && lanes[1].fork);
  EXPECT_TRUE(lanes[2].split && !lanes[2].join && !lanes[2].fork);
  const auto none = exec::lanes_of(plan, steps, cuts, 10);
  EXPECT_TRUE(std::ranges::none_of(none, &LaneStep::split));
}

TEST(ExecLanes, Halves_are_the_whole) {
  std::vector<float> memory(6 * 5 * 2);
  const TensorRef t = dense(memory.data(), DType::f32, {6, 5, 2}, Space::host);
  ops::Call call{"op", {t, t}, {}, {}, nullptr};
  const Cut cut{0, 1};
  int stream = 0;
  const ops::Call a = exec::half_of(call, cut, 0, nullptr);
  const ops::Call b = exec::half_of(call, cut, 1, &stream);
  EXPECT_EQ(a.args[0].shape[0] + b.args[0].shape[0], 6);
  EXPECT_EQ(a.args[1].shape[1] + b.args[1].shape[1], 5);
  EXPECT_EQ(b.args[0].data, &memory[3 * 10]);
  EXPECT_EQ(b.args[1].data, &memory[2 * 2]);
  EXPECT_EQ(b.stream, &stream);
  ops::Call merge{"attention.merge", {t, t, t, t}, {}, {}, nullptr};
  merge.attributes.store = t;
  const ops::Call c = exec::half_of(merge, {1, 0, 1, 0}, 1, nullptr);
  EXPECT_EQ(c.attributes.store.shape, c.args[2].shape) << "goes with the partial output";
  EXPECT_EQ(c.attributes.store.data, c.args[2].data);
}

}  // namespace
}  // namespace tessera::test

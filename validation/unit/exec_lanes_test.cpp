// SPDX-License-Identifier: Apache-2.0
// Two lanes of a compute queue: whatever two steps, or halves of steps, touch the same memory, one
// to write it, must be in the order of the plan. Proved of every program of attention, with all
// steps cut by heads and with some, by what each lane has seen of the other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "attention_cases.hpp"
#include "exec/lanes.hpp"
#include "plan/builder.hpp"
#include "plan/region.hpp"

namespace tessera::test {
namespace {

using exec::Cut;
using exec::LaneStep;

std::vector<std::int32_t> compute_steps(const plan::Plan& plan) {
  std::vector<std::int32_t> out;
  for (std::int32_t i = 0; i < std::ssize(plan.steps); ++i)
    if (plan.steps[static_cast<std::size_t>(i)].queue == 0) out.push_back(i);
  return out;
}

/// By heads, as the operators of a GPU are cut: dimension 1, of statistics 0.
Cut cut_by_heads(const plan::Plan& plan, const plan::Step& s) {
  Cut out;
  for (const plan::Use& use : plan.uses(s)) {
    const bool statistic = plan.buffers[static_cast<std::size_t>(use.buffer)].statistic;
    const Range heads = statistic ? use.d0 : use.d1;
    if (heads.size() % 2 != 0) return {};
    out.push_back(statistic ? 0 : 1);
  }
  return out;
}

struct Found {
  int unordered = 0;  ///< pairs that touch the same memory in no order
  int across = 0;     ///< pairs of different lanes that do so in order
  int side_by_side = 0;
};

Found look(const plan::Plan& plan, const std::vector<std::int32_t>& steps,
           const std::vector<Cut>& cuts, const std::vector<LaneStep>& lanes) {
  struct Part {
    int lane, number;
    std::vector<plan::Use> uses;
  };
  std::vector<Part> parts;
  std::array<int, 2> count{};                // parts of each lane
  std::array<std::array<int, 2>, 2> seen{};  // by lane: how many of each it has waited for
  Found out;
  const auto wait = [&](std::size_t lane, std::size_t other) {
    seen[lane][other] = std::max(seen[lane][other], count[other]);
    seen[lane][lane] = count[lane];
  };
  const auto put = [&](int lane, std::vector<plan::Use> uses) {
    const auto l = static_cast<std::size_t>(lane);
    for (const Part& before : parts) {
      bool same = false;
      for (const plan::Use& a : before.uses)
        for (const plan::Use& b : uses)
          same |= a.buffer == b.buffer &&
                  (a.access != plan::Access::read || b.access != plan::Access::read) &&
                  plan::Rect{a.d0, a.d1}.overlaps({b.d0, b.d1});
      if (!same || before.lane == lane) continue;
      const bool ordered = before.number < seen[l][static_cast<std::size_t>(before.lane)];
      (ordered ? out.across : out.unordered)++;
    }
    parts.push_back({lane, count[l]++, std::move(uses)});
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (lanes[i].join) wait(0, 1);
    if (lanes[i].fork) wait(1, 0);
    const auto uses = plan.uses(plan.steps[static_cast<std::size_t>(steps[i])]);
    if (!lanes[i].split) {
      put(0, {uses.begin(), uses.end()});
      continue;
    }
    out.side_by_side += i > 0 && lanes[i - 1].split && !lanes[i].join;
    for (const int half : {0, 1}) {
      std::vector<plan::Use> halves;
      for (std::size_t k = 0; k < uses.size(); ++k)
        halves.push_back(exec::half_of(uses[k], cuts[i][k], half));
      put(half, std::move(halves));
    }
  }
  return out;
}

TEST(ExecLanes, Every_program_keeps_the_order_of_its_plan) {
  const std::vector<std::int64_t> docs{3, 7, 20, 1, 19};
  std::mt19937 rng(7);
  int programs = 0, across = 0, side_by_side = 0, needed = 0;
  for (int n : {1, 2, 3, 4, 6, 8})
    for (Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
      const MaskShape s{1, 50, 50};
      std::vector<Problem> problems{
          problem(s, full_mask(s), 48, 48, 4, 3, DType::f32, layout),
          problem(s, causal_mask(s, false), 48, 24, 4, 4, DType::f32, layout),
          problem(s, document_mask(s, docs, true), 48, 16, 4, 4, DType::f32, layout)};
      for (const Problem& p : problems)
        for (const Scheme& x : schemes_for(p, n))
          for (Pass pass : {Pass::forward, Pass::backward}) {
            const plan::Program program =
                make_program(p, choose(p, x, n, pass, test_machine()), n, pass, test_machine());
            const plan::Plan& plan = program.plans[static_cast<std::size_t>(n / 2)];
            const auto steps = compute_steps(plan);
            double longest = 0;
            for (const std::int32_t i : steps)
              longest = std::max(longest, plan.steps[static_cast<std::size_t>(i)].work.flops);
            for (const double long_from : {0.0, 0.5 * longest, longest}) {
              std::vector<Cut> cuts;
              for (const std::int32_t i : steps) {
                cuts.push_back(cut_by_heads(plan, plan.steps[static_cast<std::size_t>(i)]));
                if (long_from > 0 && rng() % 4 == 0) cuts.back().clear();
              }
              std::vector<LaneStep> lanes = exec::lanes_of(plan, steps, cuts, long_from);
              const Found found = look(plan, steps, cuts, lanes);
              EXPECT_EQ(found.unordered, 0) << program.name << " on " << n << " ranks";
              across += found.across;
              side_by_side += found.side_by_side;
              for (LaneStep& lane : lanes) lane.join = false;
              needed += look(plan, steps, cuts, lanes).unordered > 0;
              ++programs;
            }
          }
    }
  EXPECT_GT(needed, 0) << "the test would not see a join that is missing";
  EXPECT_GT(side_by_side, 0);
  fmt::print("{} programs: {} accesses in order across lanes, {} steps beside the one before\n",
             programs, across, side_by_side);
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
    EXPECT_EQ(look(plan, steps, cuts, lanes).unordered, 0);
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
}

}  // namespace
}  // namespace tessera::test

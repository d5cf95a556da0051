// SPDX-License-Identifier: Apache-2.0
// The checker on right programs: no false alarm; its clocks against the oracle; its speed; and the
// counts of the ring against the closed form.
#include "plan/check.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <random>

#include "base/error.hpp"
#include "plan/clocks.hpp"
#include "plan/count.hpp"
#include "plan/simulate.hpp"
#include "plan_ring.hpp"

namespace tessera::plan {
namespace {

using testing::Reachable;
using testing::ring_program;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class PlanRing : public ::testing::TestWithParam<int> {};

TEST_P(PlanRing, clean_program_has_no_fault) {
  for (int rounds : {1, 3}) {
    for (const Fault& f : check(ring_program(GetParam(), rounds))) {
      ADD_FAILURE() << f.name << ": " << f.message;
    }
  }
}

TEST_P(PlanRing, counts_equal_the_closed_form) {
  const int n = GetParam();
  const auto counts = count(ring_program(n, 2), 2);
  for (int r = 0; r < n; ++r) {
    const RankCount& c = counts[r];
    const std::int64_t sums = n > 1 ? 2 * 3 * 8 : 0;
    EXPECT_EQ(c.bytes_sent, 2 * (n - 1) * (testing::k_chunk_bytes + testing::k_stat_bytes) + sums);
    EXPECT_EQ(c.by_axis[0].elements, 2 * (n - 1) * testing::k_rows * testing::k_width + sums / 8);
    EXPECT_EQ(c.messages, n > 1 ? 2 * (n - 1) + 2 : 0);
    EXPECT_DOUBLE_EQ(c.flops, 2.0 * n * 1000);
    EXPECT_EQ(c.steps_by_label.at(testing::k_tile), 2 * n);
    EXPECT_EQ(c.intra_bytes + c.inter_bytes, c.bytes_sent);
    const bool next_on_node = (r + 1) % n / 2 == r / 2;
    EXPECT_EQ(c.intra_bytes, (next_on_node ? c.bytes_sent - sums : 0) + (n <= 2 ? sums : 0));
    EXPECT_EQ(c.scratch_bytes, 2 * (testing::k_chunk_bytes + testing::k_stat_bytes) + 2 * 3 * 8);
    EXPECT_EQ(c.peak_bytes, c.scratch_bytes + 2 * testing::k_chunk_bytes + testing::k_stat_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PlanRing, ::testing::Values(1, 2, 3, 4, 9));

/// Random groups and random waits: the clocks must agree with following every edge, pair by pair.
TEST(PlanClocks, agree_with_the_oracle_on_random_plans) {
  std::mt19937 random(2);
  auto pick = [&](int below) { return static_cast<int>(random() % below); };
  int compared = 0, yes = 0, cyclic = 0;
  for (int round = 0; round < 150; ++round) {
    Program program;
    Plan& plan = program.plans.emplace_back();
    plan.queues.resize(3);
    for (int s = 0; s < 36; ++s) {
      Step step;
      step.queue = static_cast<std::int8_t>(pick(3));
      // A send without a receive: only its place in a unit matters here.
      step.kind = step.queue == 0 ? StepKind::compute : StepKind::send;
      step.comm.peer = 0;
      step.group = step.queue == 0 ? -1 : s / 6;
      step.first_after = static_cast<std::uint32_t>(plan.after_pool.size());
      for (int e = pick(3) / 2; s > 0 && e > 0; --e) plan.after_pool.push_back(pick(s));
      step.num_after = static_cast<std::uint32_t>(plan.after_pool.size()) - step.first_after;
      plan.steps.push_back(step);
    }
    const Graph graph = make_graph(program);
    const Clocks clocks(graph, 0);
    if (clocks.cyclic()) {
      ++cyclic;
      continue;
    }
    const Reachable oracle(plan);
    for (int j = 0; j < 36; ++j) {
      for (int i = 0; i < 36; ++i) {
        if (i == j) continue;
        ++compared;
        yes += oracle.ordered(i, j);
        ASSERT_EQ(clocks.ordered(i, j), oracle.ordered(i, j)) << i << " before " << j;
      }
    }
  }
  std::printf("%d pairs compared, %d ordered; %d plans were cyclic\n", compared, yes, cyclic);
  EXPECT_GT(yes, 1000);
  EXPECT_GT(compared - yes, 1000);
}

/// Two ranks on one axis, plans given by hand.
Program two_ranks() {
  Program program;
  program.plans.resize(2);
  program.axes = {{"context", {{0, 1}}}};
  return program;
}

TEST(PlanCheck, unit_that_waits_for_its_own_member_is_a_deadlock) {
  Program program = two_ranks();
  for (int r = 0; r < 2; ++r) {
    Builder b(program.plans[r]);
    const int compute = b.queue(QueueKind::compute, "compute");
    const int comm = b.queue(QueueKind::comm, "comm");
    const int x = b.buffer({"x", Role::scratch, DType::f32, {1, 1, 1}, false});
    const int y = b.buffer({"y", Role::scratch, DType::f32, {1, 1, 1}, false});
    const int g = b.new_group();
    b.recv(comm, g, "r", {}, 0, 1 - r, 0, {b.all(x, Access::write)});
    b.compute(compute, "c", {}, {"op", 1, 1}, {b.all(x, Access::read), b.all(y, Access::write)});
    b.send(comm, g, "s", {}, 0, 1 - r, 0, {b.all(y, Access::read)});
  }
  const auto faults = check(program);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].name, fault::deadlock);
  EXPECT_NE(faults[0].message.find("a cycle of 2 waits"), std::string::npos) << faults[0].message;
  Machine machine;
  machine.intra = machine.inter = {0, 1};
  EXPECT_THROW(simulate(program, machine), Error);
}

TEST(PlanCheck, scratch_written_in_pieces_counts_as_written) {
  Program program = two_ranks();
  Builder b(program.plans[0]);
  const int q = b.queue(QueueKind::compute, "compute");
  const int x = b.buffer({"x", Role::scratch, DType::f32, {4, 4, 1}, false});
  b.compute(q, "w", {}, {}, {b.part(x, Access::write, {0, 2}, {0, 3})});
  b.compute(q, "w", {}, {}, {b.part(x, Access::write, {1, 4}, {3, 4})});
  b.compute(q, "w", {}, {}, {b.part(x, Access::write, {2, 4}, {0, 3})});
  b.compute(q, "r", {}, {}, {b.part(x, Access::read, {1, 4}, {0, 4})});
  EXPECT_TRUE(check(program).empty());
  b.compute(q, "r", {}, {}, {b.part(x, Access::read, {0, 4}, {0, 4})});
  const auto faults = check(program);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].name, fault::read_before_write);
  EXPECT_EQ(faults[0].step, 4);
  EXPECT_NE(faults[0].message.find("[0,1) x [3,4)"), std::string::npos) << faults[0].message;
}

TEST(PlanCheck, message_without_payload_is_a_size_mismatch) {
  Program program = two_ranks();
  for (int r = 0; r < 2; ++r) {
    Builder b(program.plans[r]);
    const int comm = b.queue(QueueKind::comm, "comm");
    const int x = b.buffer({"x", Role::input, DType::f32, {4, 4, 1}, false});
    if (r == 0) b.send(comm, -1, "m", {}, 0, 1, 0, {b.rows(x, Access::read, {2, 2})});
    if (r == 1) b.recv(comm, -1, "m", {}, 0, 0, 0, {b.rows(x, Access::write, {2, 2})});
  }
  const auto faults = check(program);
  ASSERT_EQ(faults.size(), 2u) << "one for each side";
  EXPECT_EQ(faults[0].name, fault::size_mismatch);
  EXPECT_EQ(faults[1].name, fault::size_mismatch);
}

TEST(PlanCheck, many_faults_are_cut_to_100_of_a_name) {
  Program program = ring_program(4, 40);
  program.coverage.clear();
  for (int i = 0; i < 500; ++i) program.coverage.push_back({"nobody", tile(i, 0)});
  EXPECT_EQ(check(program).size(), 100u);
}

/// The size of acceptance test D: 256 ranks, about 3000 steps each.
TEST(PlanScale, build_check_count_simulate_256_ranks) {
  auto begin = std::chrono::steady_clock::now();
  const Program program = ring_program(256, 4);
  const double build_s = seconds_since(begin);
  begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(check(program).empty());
  const double check_s = seconds_since(begin);
  begin = std::chrono::steady_clock::now();
  EXPECT_EQ(count(program, 8)[0].messages, 4 * 255 + 2);
  const double count_s = seconds_since(begin);
  Machine machine;
  machine.intra = machine.inter = {1e-6, 1e9};
  machine.memory_b_s = 1e10;
  machine.rates = {{"ring.multiply", DType::f32, 1e-6, 1e9}};
  begin = std::chrono::steady_clock::now();
  EXPECT_GT(simulate(program, machine).makespan_s, 0);
  const double simulate_s = seconds_since(begin);
  std::printf("256 ranks x %zu steps: build %.2f s, check %.2f s, count %.2f s, simulate %.2f s\n",
              program.plans[0].steps.size(), build_s, check_s, count_s, simulate_s);
  EXPECT_LT(check_s + count_s + simulate_s, 30) << "an order above what an idle core takes";
}

/// All chunks in one unit per rank: 2(n-1) members side by side, every tile waits for one of them.
Program all_gather_program(int n) {
  Program program;
  program.axes = {{"context", {{}}}};
  program.plans.resize(n);
  for (int r = 0; r < n; ++r) {
    program.axes[0].groups[0].push_back(r);
    Builder b(program.plans[r]);
    const int compute = b.queue(QueueKind::compute, "compute");
    const int comm = b.queue(QueueKind::comm, "comm");
    const int own = b.buffer({"own", Role::input, DType::f32, {4, 8, 1}, false});
    const int all = b.buffer({"all", Role::scratch, DType::f32, {4 * n, 8, 1}, false});
    const int out = b.buffer({"out", Role::output, DType::f32, {4, 8, 1}, false});
    b.compute(compute, "own", {}, {"copy", 0, 1},
              {b.all(own, Access::read), b.rows(all, Access::write, {4 * r, 4 * r + 4})});
    const int group = b.new_group();
    for (int d = 1; d < n; ++d) {
      const int to = (r + d) % n, from = (r + n - d) % n;
      b.send(comm, group, "m", chunk(r), 0, to, r, {b.all(own, Access::read)});
      b.recv(comm, group, "m", chunk(from), 0, from, from,
             {b.rows(all, Access::write, {4 * from, 4 * from + 4})});
    }
    for (int j = 0; j < n; ++j) {
      b.compute(compute, "tile", tile(r, j), {"op", 0, 1},
                {b.rows(all, Access::read, {4 * j, 4 * j + 4}),
                 b.all(out, j == 0 ? Access::write : Access::update)});
    }
    b.compute(compute, "whole", {}, {"op", 0, 1}, {b.all(all, Access::read)});
  }
  return program;
}

TEST(PlanScale, wide_units_of_256_ranks) {
  auto begin = std::chrono::steady_clock::now();
  Program program = all_gather_program(256);
  const double build_s = seconds_since(begin);
  begin = std::chrono::steady_clock::now();
  for (const Fault& f : check(program)) ADD_FAILURE() << f.name << ": " << f.message;
  const double check_s = seconds_since(begin);
  SimulateOptions options;
  options.duration = [](int, const Step& s) { return is_comm(s.kind) ? 1.0 : 0.0; };
  begin = std::chrono::steady_clock::now();
  EXPECT_DOUBLE_EQ(simulate(program, Machine{}, options).makespan_s, 255);
  std::printf("256 ranks, units of 510 members: build %.2f s, check %.2f s, simulate %.2f s\n",
              build_s, check_s, seconds_since(begin));
  // The tile that reads chunk 9 waits for one member; without that wait the order is gone.
  Plan& plan = program.plans[3];
  for (Step& step : plan.steps) {
    if (step.index == tile(3, 9)) step.num_after = 0;
  }
  const auto faults = check(program);
  ASSERT_EQ(faults.size(), 1u) << "the last step waits for the message by itself";
  EXPECT_EQ(faults[0].name, fault::missing_wait);
  EXPECT_EQ(faults[0].rank, 3);
  EXPECT_EQ(plan.steps[faults[0].step].index, tile(3, 9));
}

}  // namespace
}  // namespace tessera::plan

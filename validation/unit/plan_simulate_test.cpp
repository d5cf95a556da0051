// SPDX-License-Identifier: Apache-2.0
// The simulator against times that can be worked out by hand, against the golden makespans of the
// ring, and under random durations.
#include "plan/simulate.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "base/error.hpp"
#include "plan_ring.hpp"

namespace tessera::plan {
namespace {

using testing::k_move;
using testing::k_tile;
using testing::ring_program;

/// n ranks with a compute and a comm queue each and one input buffer of `bytes`.
struct Bench {
  explicit Bench(int n, std::int64_t bytes = 1 << 20) {
    program.axes = {{"context", {{}}}};
    program.plans.resize(n);
    for (int r = 0; r < n; ++r) {
      program.axes[0].groups[0].push_back(r);
      auto& b = builders.emplace_back(program.plans[r]);
      b.queue(QueueKind::compute, "compute");
      b.queue(QueueKind::comm, "comm");
      b.buffer({"x", Role::input, DType::f32, {bytes / 4, 1, 1}, false});
      b.buffer({"y", Role::output, DType::f32, {bytes / 4 * 4, 1, 1}, false});
    }
  }
  /// A message from a to b; the receiver's slot keeps its messages apart.
  void message(int a, int b, int key, int group = -1, int slot = 0) {
    const auto size = program.plans[a].buffers[0].shape[0];
    builders[a].send(1, group, "m", {}, 0, b, key, {builders[a].all(0, Access::read)});
    builders[b].recv(1, group, "m", {}, 0, a, key,
                     {builders[b].rows(1, Access::write, {slot * size, (slot + 1) * size})});
  }
  Program program;
  std::vector<Builder> builders;
};

Machine machine_1gb() {
  Machine machine;
  machine.name = "test";
  machine.intra = machine.inter = {0, 1e9};
  machine.memory_b_s = 1e9;
  return machine;
}

TEST(PlanSimulate, ob116_one_mebibyte_at_one_gigabyte_per_second) {
  Bench bench(2);
  bench.message(0, 1, 0);
  const auto result = simulate(bench.program, machine_1gb());
  std::printf("1 MiB at 1 GB/s: %.9f s\n", result.makespan_s);
  EXPECT_DOUBLE_EQ(result.makespan_s, 1.048576e-3);
  EXPECT_DOUBLE_EQ(result.ranks[0].end_s, 1.048576e-3);
}

TEST(PlanSimulate, ob116_zero_bytes_or_no_bandwidth_is_an_error) {
  Bench bench(2);
  bench.message(0, 1, 0);
  Machine machine = machine_1gb();
  machine.intra.bandwidth_b_s = 0;
  machine.ranks_per_node = 2;
  EXPECT_THROW(simulate(bench.program, machine), Error);
  machine.ranks_per_node = 1;  // the other tier has a bandwidth
  EXPECT_NO_THROW(simulate(bench.program, machine));
  bench.program.plans[0].steps[0].comm.bytes = 0;
  EXPECT_THROW(simulate(bench.program, machine), Error);
}

TEST(PlanSimulate, tier_follows_the_node_of_the_ranks) {
  Bench bench(4, 1000);
  bench.message(0, 1, 0);
  bench.message(2, 3, 0, -1);
  bench.message(1, 2, 0, -1, 1);
  Machine machine = machine_1gb();
  machine.ranks_per_node = 2;
  machine.intra = {1e-3, 1e6};  // 2 ms
  machine.inter = {5e-3, 1e5};  // 15 ms
  const auto result = simulate(bench.program, machine);
  EXPECT_DOUBLE_EQ(result.ranks[0].end_s, 2e-3);
  EXPECT_DOUBLE_EQ(result.ranks[2].end_s, 17e-3) << "its second message starts at 2 ms";
}

TEST(PlanSimulate, sends_of_one_unit_share_the_way_out) {
  Bench bench(3, 1000);
  bench.message(0, 1, 0, 0);
  bench.message(0, 2, 1, 0);
  Machine machine = machine_1gb();
  machine.inter = {0, 1000};  // 1 s each
  EXPECT_DOUBLE_EQ(simulate(bench.program, machine).makespan_s, 2.0);
  Bench gather(3, 1000);
  gather.message(1, 0, 0, 0, 0);
  gather.message(2, 0, 1, 0, 1);
  EXPECT_DOUBLE_EQ(simulate(gather.program, machine).makespan_s, 2.0)
      << "receives share the way in";
  Bench both(2, 1000);
  both.message(0, 1, 0, 0);
  both.message(1, 0, 1, 0);
  EXPECT_DOUBLE_EQ(simulate(both.program, machine).makespan_s, 1.0) << "both ways at once";
}

TEST(PlanSimulate, all_to_all_in_one_unit_takes_the_sum_of_its_sends) {
  for (int n : {2, 3, 5, 8}) {
    Bench bench(n, 1000);
    for (int a = 0; a < n; ++a) bench.program.plans[a].buffers[1].shape[0] = 250 * n;
    for (int a = 0; a < n; ++a) {
      for (int b = 0; b < n; ++b) {
        if (a != b) bench.message(a, b, 0, 0, a);
      }
    }
    Machine machine = machine_1gb();
    machine.inter = {0, 1000};
    EXPECT_DOUBLE_EQ(simulate(bench.program, machine).makespan_s, n - 1.0);
  }
}

TEST(PlanSimulate, all_reduce_is_a_ring_over_all_members) {
  const int n = 4;
  Bench bench(n, 1000);
  for (int r = 0; r < n; ++r) {
    auto& b = bench.builders[r];
    if (r == 2) b.compute(0, "late", {}, {"op", 0, 5e9}, {b.rows(1, Access::write, {0, 250})});
    b.all_reduce(1, "sum", {}, 0, 0, {b.rows(1, Access::update, {0, 250})});
  }
  Machine machine = machine_1gb();
  machine.inter = {1e-3, 1000};
  const double expected = 5 + 6e-3 + 2.0 * 3 / 4;
  for (const auto& rank : simulate(bench.program, machine).ranks) {
    EXPECT_DOUBLE_EQ(rank.end_s, expected);
    EXPECT_NEAR(rank.comm_s, expected - 5, 1e-12);
  }
}

TEST(PlanSimulate, compute_takes_rate_bytes_and_shared_cores) {
  Bench bench(2, 8);
  auto add = [&](int r, double flops, double bytes) {
    bench.builders[r].compute(0, "c", {}, {"gemm", flops, bytes},
                              {bench.builders[r].all(0, Access::read)});
  };
  add(0, 3e9, 1);
  add(1, 0, 2e9);
  Machine machine = machine_1gb();
  machine.step_overhead_s = 0.25;
  machine.rates = {{"gemm", DType::f64, 9, 9}, {"gemm", DType::f32, 0.5, 1e9}};
  auto result = simulate(bench.program, machine);
  EXPECT_DOUBLE_EQ(result.ranks[0].compute_s, 0.25 + 0.5 + 3);
  EXPECT_DOUBLE_EQ(result.ranks[1].compute_s, 0.25 + 0.5 + 2);
  machine.ranks_per_node = 2;
  machine.cores_per_node = 1;
  result = simulate(bench.program, machine);
  EXPECT_DOUBLE_EQ(result.ranks[0].compute_s, 2 * 3.75);
  machine.rates.pop_back();
  try {
    simulate(bench.program, machine);
    ADD_FAILURE() << "flops without a rate must be an error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    EXPECT_NE(e.message().find("gemm"), std::string::npos);
    EXPECT_NE(e.message().find("test"), std::string::npos);
  }
}

/// Makespans of attention.md 2.5, last column: block time tb, 2 units per KV shift.
TEST(PlanSimulate, ring_reproduces_the_golden_makespans) {
  struct Golden {
    int n;
    double tb, makespan;
  };
  for (const Golden& g : {Golden{9, 1, 17},
                          {16, 0.5, 30.5},
                          {16, 1, 31},
                          {16, 2, 32},
                          {64, 0.5, 126.5},
                          {64, 1, 127},
                          {64, 2, 128},
                          {256, 1, 511}}) {
    SimulateOptions options;
    options.duration = [&](int, const Step& s) {
      return s.label == k_tile ? g.tb : s.label == k_move ? 2.0 : 0.0;
    };
    EXPECT_DOUBLE_EQ(simulate(ring_program(g.n), Machine{}, options).makespan_s, g.makespan)
        << g.n << " ranks, tb " << g.tb;
  }
}

TEST(PlanSimulate, exposed_time_is_what_compute_waits_for) {
  SimulateOptions options;
  options.duration = [](int, const Step& s) {
    return s.label == k_tile ? 1.0 : s.label == k_move ? 2.0 : 0.0;
  };
  // Compute [0,1) [2,3) [4,5) [6,7), transfers [0,2) [2,4) [4,6).
  for (const RankTime& rank : simulate(ring_program(4), Machine{}, options).ranks) {
    EXPECT_DOUBLE_EQ(rank.compute_s, 4);
    EXPECT_DOUBLE_EQ(rank.comm_s, 6);
    EXPECT_DOUBLE_EQ(rank.exposed_s, 3);
    EXPECT_DOUBLE_EQ(rank.end_s, 7);
  }
}

TEST(PlanSimulate, transfer_without_overlap_takes_its_time_from_compute) {
  // The sender computes 10 s beside a transfer of 4 s; or ten steps of 1 s.
  for (int steps : {1, 10}) {
    for (double overlap : {0.0, 0.5, 1.0}) {
      Bench bench(2, 4000);
      bench.message(0, 1, 0);
      for (int s = 0; s < steps; ++s) {
        bench.builders[0].compute(0, "c", {}, {"op", 0, 10e9 / steps}, {});
      }
      Machine machine = machine_1gb();
      machine.inter = {0, 1000};
      machine.overlap = overlap;
      const auto result = simulate(bench.program, machine);
      EXPECT_NEAR(result.makespan_s, 10 + (1 - overlap) * 4, 1e-12) << steps << " " << overlap;
      EXPECT_NEAR(result.ranks[1].end_s, 4, 1e-12);
    }
  }
}

/// A transfer that begins while compute runs postpones its end; what is over is left alone.
TEST(PlanSimulate, transfer_that_begins_later_postpones_running_compute) {
  Bench bench(2, 4000);
  bench.builders[1].compute(0, "late", {}, {"op", 0, 3e9},
                            {bench.builders[1].all(0, Access::update)});
  bench.message(1, 0, 0);
  bench.builders[0].compute(0, "c", {}, {"op", 0, 5e9}, {});
  Machine machine = machine_1gb();
  machine.inter = {0, 1000};
  machine.overlap = 0;
  const auto result = simulate(bench.program, machine);
  // Rank 0 computes [0,3), stands still while bytes move [3,7), ends at 9.
  EXPECT_NEAR(result.ranks[0].steps[1].end_s, 9, 1e-12);
  EXPECT_NEAR(result.ranks[1].compute_s, 3, 1e-12);
}

TEST(PlanSimulate, random_durations_keep_every_dependency) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> delay(0, 1);
  long edges = 0;
  for (int n : {2, 3, 4, 9}) {
    for (int round = 0; round < 10; ++round) {
      const Program program = ring_program(n, 2);
      SimulateOptions options;
      options.duration = [&](int, const Step&) { return delay(random); };
      const auto result = simulate(program, Machine{}, options);
      for (int r = 0; r < n; ++r) {
        const Plan& plan = program.plans[r];
        const auto& time = result.ranks[r].steps;
        const testing::Reachable oracle(plan);
        for (int j = 0; j < static_cast<int>(plan.steps.size()); ++j) {
          ASSERT_LE(time[j].posted_s, time[j].begin_s);
          ASSERT_LE(time[j].begin_s, time[j].end_s);
          for (int i = 0; i < j; ++i) {
            if (!oracle.ordered(i, j)) continue;
            ++edges;
            ASSERT_LE(time[i].end_s, time[j].posted_s) << "rank " << r << " " << i << ", " << j;
          }
          const Step& step = plan.steps[j];
          if (step.kind != StepKind::recv) continue;
          const Plan& peer = program.plans[step.comm.peer];
          for (std::size_t s = 0; s < peer.steps.size(); ++s) {
            if (peer.steps[s].kind != StepKind::send || peer.steps[s].comm.key != step.comm.key) {
              continue;
            }
            ASSERT_DOUBLE_EQ(result.ranks[step.comm.peer].steps[s].end_s, time[j].end_s);
            ASSERT_LE(result.ranks[step.comm.peer].steps[s].posted_s, time[j].begin_s);
          }
        }
      }
    }
  }
  std::printf("%ld ordered pairs kept under random durations\n", edges);
  EXPECT_GT(edges, 10000);
}

}  // namespace
}  // namespace tessera::plan

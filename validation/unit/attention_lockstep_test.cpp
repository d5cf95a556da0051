// SPDX-License-Identifier: Apache-2.0
// Golden makespans of attention brief 2.5 (tQ = tO = 1, tKV = 2; backward tQ = tKV = 2, tdQ = 1,
// tdKV = 2), and the same schedules as real plans under the event simulator.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attention/context.hpp"
#include "attention/labels.hpp"
#include "attention/scheme.hpp"
#include "attention_cases.hpp"
#include "plan/simulate.hpp"

namespace tessera::test {
namespace {

TEST(AttentionLockstep, GoldenMakespans_forward) {
  struct Row {
    int n;
    double tb, mesh, bound, eager, ring;
  };
  for (const Row& r : std::vector<Row>{{3, 1, 10, 9, 11, 17},
                                       {4, 0.5, 12.5, 12, 13.5, 30.5},
                                       {4, 1, 17, 16, 19, 31},
                                       {4, 2, 32, 32, 34, 32},
                                       {8, 0.5, 35, 32, 42, 126.5},
                                       {8, 1, 65, 64, 71, 127},
                                       {8, 2, 128, 128, 134, 128},
                                       {16, 0.25, 71, 64, 87.5, 510},
                                       {16, 0.5, 131, 128, 146, 510},
                                       {16, 1, 257, 256, 271, 511},
                                       {16, 2, 512, 512, 526, 512}}) {
    const Costs c{.block = r.tb, .q = 1, .kv = 2, .out = 1};
    const Lockstep order = lockstep(r.n, r.n, Pass::forward, c);
    EXPECT_DOUBLE_EQ(order.makespan, r.mesh) << r.n << " tb " << r.tb;
    EXPECT_DOUBLE_EQ(order.lower_bound, r.bound);
    EXPECT_DOUBLE_EQ(lockstep(r.n, r.n, Pass::forward, c, true).makespan, r.eager);
    const double ring = lockstep(1, r.n * r.n, Pass::forward, c).makespan;
    EXPECT_NEAR(ring, r.ring, 0.5) << "ring of " << r.n * r.n;  // the table rounds 510.25 and 510.5
  }
}

TEST(AttentionLockstep, GoldenMakespans_backward) {
  for (auto [tb, t] : {std::pair{0.5, 138.0}, std::pair{1.0, 260.0}, std::pair{2.5, 641.0}})
    EXPECT_DOUBLE_EQ(
        lockstep(16, 16, Pass::backward, {.block = tb, .q = 2, .kv = 2, .out = 1, .dkv = 2})
            .makespan,
        t);
}

std::string text(const Lockstep& order) {
  std::string s;
  for (const Slot& x : order.slots)
    s += x.op == Transfer::q ? 'Q' : x.op == Transfer::kv ? 'K' : x.op == Transfer::out ? 'O' : 'b';
  return s;
}

TEST(AttentionLockstep, OpList_3x3) {
  EXPECT_EQ(text(lockstep(3, 3, Pass::forward, {.block = 1, .q = 1, .kv = 2, .out = 1})),
            "QQKKbOOb");
}

/// Durations of the unit-time model for real steps.
double unit_time(const plan::Step& s, double tb, bool backward) {
  if (s.label == label::forward_tile || s.label == label::backward_tile) return tb;
  if (s.label == label::shift_q) return backward ? 2 : 1;
  if (s.label == label::shift_kv || s.label == label::shift_dkv) return 2;
  if (s.label == label::shift_o || s.label == label::shift_dq) return 1;
  return 0;
}

TEST(AttentionLockstep, SimulatedPlans_stay_between_bound_and_model) {
  for (int n : {3, 4, 8})
    for (double tb : {0.5, 1.0, 2.0})
      for (Pass pass : {Pass::forward, Pass::backward}) {
        const bool backward = pass == Pass::backward;
        const MaskShape s{1, 2 * n * n, 2 * n * n};
        Problem p = problem(s, full_mask(s), 1, 1, 8, 8, DType::bf16, Layout::zigzag);
        plan::Machine m = test_machine();
        m.ranks_per_node = n * n;
        const Costs costs{.block = tb, .q = backward ? 2.0 : 1.0, .kv = 2, .out = 1, .dkv = 2};
        const Lockstep order = lockstep(n, n, pass, costs);
        const plan::Program program = make_program(p, {SchemeKind::mesh, n, n}, n * n, pass, costs);
        plan::SimulateOptions options;
        options.duration = [&](int, const plan::Step& step) {
          return unit_time(step, tb, backward);
        };
        const double t = plan::simulate(program, m, options).makespan_s;
        EXPECT_GE(t, order.lower_bound - 1e-9) << n << " tb " << tb;
        EXPECT_LE(t, order.makespan + 1e-9)
            << n << " tb " << tb << (backward ? " backward" : " forward");
        fmt::print("{0}x{0} tb {1} {2}: bound {3}, simulated {4}, lockstep {5}\n", n, tb,
                   attention::name_of(pass), order.lower_bound, t, order.makespan);
      }
}

TEST(AttentionLockstep, RingBackward_sends_results_behind_its_blocks) {
  for (int b : {1, 2, 3, 8, 64}) {
    const Lockstep order = lockstep(1, b, Pass::backward, {});
    int blocks = 0, sent = 0, received = 0;
    for (const Slot& s : order.slots) {
      if (s.op == Transfer::kv) EXPECT_EQ(s.distance, ++received);
      if (s.op == Transfer::dkv) {
        EXPECT_EQ(s.distance, ++sent);
        EXPECT_LE(sent, blocks - 1);    // its block is done
        EXPECT_LE(received - sent, 2);  // never far ahead: bounded buffers
      }
      for (const Block& x : s.blocks) {
        EXPECT_EQ(x.t, blocks++);
        EXPECT_LE(x.t, received);
      }
    }
    EXPECT_EQ(blocks, b);
    EXPECT_EQ(sent, b - 1);
    EXPECT_EQ(received, b - 1);
  }
}

}  // namespace
}  // namespace tessera::test

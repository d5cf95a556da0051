// SPDX-License-Identifier: Apache-2.0
// The builder derives exactly the waits that accesses ask for; compared with a slow oracle that
// follows every edge.
#include "plan/builder.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <stdexcept>

#include "plan_ring.hpp"

namespace tessera::plan {
namespace {

using testing::Reachable;
using Waits = std::vector<std::int32_t>;

class PlanBuilder : public ::testing::Test {
 protected:
  Plan plan;
  Builder b{plan};
  int compute = b.queue(QueueKind::compute, "compute");
  int comm = b.queue(QueueKind::comm, "comm");
  int other = b.queue(QueueKind::comm, "comm2");
  int x = b.buffer({"x", Role::scratch, DType::bf16, {8, 6, 5}, false});
  int y = b.buffer({"y", Role::scratch, DType::f32, {8, 6, 1}, false});

  int run(int queue, std::vector<Use> uses) { return b.compute(queue, "t", {}, {}, uses); }
  Waits waits(int step) const {
    const auto after = plan.after(plan.steps[step]);
    return {after.begin(), after.end()};
  }
};

TEST_F(PlanBuilder, read_after_write_waits_across_queues_only) {
  const int w = run(compute, {b.all(x, Access::write)});
  EXPECT_EQ(waits(run(compute, {b.all(x, Access::read)})), Waits{});
  EXPECT_EQ(waits(run(comm, {b.rows(x, Access::read, {2, 3})})), Waits{w});
}

TEST_F(PlanBuilder, write_waits_for_reads_and_writes) {
  const int w = run(compute, {b.all(x, Access::write)});
  const int r = run(comm, {b.all(x, Access::read)});
  EXPECT_EQ(waits(run(other, {b.all(x, Access::write)})), (Waits{w, r}));
}

TEST_F(PlanBuilder, reads_do_not_wait_for_reads) {
  run(compute, {b.all(x, Access::read)});
  EXPECT_EQ(waits(run(comm, {b.all(x, Access::read)})), Waits{});
}

TEST_F(PlanBuilder, disjoint_rectangles_are_free) {
  run(compute, {b.part(x, Access::write, {0, 4}, {0, 3})});
  EXPECT_EQ(waits(run(comm, {b.part(x, Access::write, {0, 4}, {3, 6})})), Waits{});
  EXPECT_EQ(waits(run(comm, {b.part(x, Access::write, {4, 8}, {0, 3})})), Waits{});
  EXPECT_EQ(waits(run(comm, {b.rows(x, Access::read, {2, 2})})), Waits{}) << "empty range";
}

TEST_F(PlanBuilder, only_the_latest_step_of_a_queue_is_waited_for) {
  run(compute, {b.rows(x, Access::write, {0, 2})});
  const int later = run(compute, {b.rows(x, Access::write, {2, 4})});
  EXPECT_EQ(waits(run(comm, {b.rows(x, Access::read, {0, 4})})), Waits{later});
  EXPECT_EQ(waits(run(comm, {b.rows(x, Access::read, {0, 1})})), Waits{}) << "queue order has it";
}

TEST_F(PlanBuilder, members_of_a_group_do_not_stand_for_each_other) {
  const int g = b.new_group();
  const int first = b.recv(comm, g, "r", {}, 0, 1, 0, {b.all(x, Access::write)});
  const int second = b.recv(comm, g, "r", {}, 0, 1, 1, {b.all(y, Access::write)});
  EXPECT_EQ(waits(run(compute, {b.all(x, Access::read), b.all(y, Access::read)})),
            (Waits{first, second}));
}

TEST_F(PlanBuilder, groups_may_be_interleaved_with_other_queues) {
  const int g = b.new_group();
  const int first = b.send(comm, g, "s", {}, 0, 1, 0, {b.all(x, Access::read)});
  run(compute, {b.all(y, Access::write)});
  b.send(comm, g, "s", {}, 0, 1, 1, {b.all(x, Access::read)});
  EXPECT_THROW(b.recv(comm, g, "r", {}, 0, 1, 2, {b.all(x, Access::write)}), std::logic_error)
      << "conflicts with step " << first << " of its own unit";
}

TEST_F(PlanBuilder, payload_is_the_sum_of_the_ranges) {
  const int s = b.send(comm, -1, "s", {}, 0, 1, 0,
                       {b.part(x, Access::read, {0, 2}, {1, 4}), b.rows(y, Access::read, {0, 2})});
  EXPECT_EQ(plan.steps[s].comm.bytes, 2 * 3 * 5 * 2 + 2 * 6 * 4);
}

TEST_F(PlanBuilder, unknown_buffer_or_queue_is_a_logic_error) {
  EXPECT_THROW(run(compute, {{9, Access::read, {0, 1}, {0, 1}}}), std::logic_error);
  EXPECT_THROW(run(7, {}), std::logic_error);
}

/// Nobody may wait in a reduction with messages that others need still to be posted, though they
/// touch other buffers: of the last unit of the other queue every message is waited for.
TEST_F(PlanBuilder, reduction_waits_for_messages_of_other_queues) {
  b.send(other, b.new_group(), "t", {}, 0, 1, 0, {b.all(x, Access::read)});
  const int unit = b.new_group();
  const int s = b.send(other, unit, "t", {}, 0, 1, 1, {b.rows(x, Access::read, {0, 1})});
  const int r = b.recv(other, unit, "t", {}, 0, 1, 1, {b.rows(x, Access::write, {2, 3})});
  b.send(comm, b.new_group(), "t", {}, 0, 1, 2, {b.rows(x, Access::read, {0, 1})});
  EXPECT_EQ(waits(b.all_reduce(comm, "t", {}, 0, 3, {b.all(y, Access::update)})), (Waits{s, r}));
}

/// Random steps on three queues; every pair that conflicts must be ordered, and no wait may point
/// forward or into the own queue.
TEST(PlanBuilderProperty, every_conflict_is_ordered) {
  std::mt19937 random(1);
  auto pick = [&](int below) { return static_cast<int>(random() % below); };
  int conflicts = 0;
  for (int round = 0; round < 60; ++round) {
    Plan plan;
    Builder b(plan);
    for (int q = 0; q < 3; ++q) b.queue(QueueKind::comm, "q");
    for (int i = 0; i < 3; ++i) b.buffer({"x", Role::input, DType::f32, {6, 4, 1}, false});
    for (int s = 0; s < 40; ++s) {
      std::vector<Use> uses;
      for (int u = 0; u < 2; ++u) {
        const int r = pick(5), c = pick(3);
        uses.push_back(
            b.part(pick(3), Access(pick(3)), {r, r + 1 + pick(6 - r)}, {c, c + 1 + pick(4 - c)}));
      }
      b.compute(pick(3), "t", {}, {}, uses);
    }
    const Reachable oracle(plan);
    for (int j = 0; j < 40; ++j) {
      for (const int dep : plan.after(plan.steps[j])) {
        ASSERT_LT(dep, j);
        ASSERT_NE(plan.steps[dep].queue, plan.steps[j].queue);
      }
      for (int i = 0; i < j; ++i) {
        for (const Use& a : plan.uses(plan.steps[i])) {
          for (const Use& c : plan.uses(plan.steps[j])) {
            if (a.buffer != c.buffer || !a.d0.overlaps(c.d0) || !a.d1.overlaps(c.d1)) continue;
            if (a.access == Access::read && c.access == Access::read) continue;
            ++conflicts;
            ASSERT_TRUE(oracle.ordered(i, j)) << "steps " << i << " and " << j;
          }
        }
      }
    }
  }
  std::printf("%d conflicting pairs, all ordered\n", conflicts);
  EXPECT_GT(conflicts, 1000);
}

}  // namespace
}  // namespace tessera::plan

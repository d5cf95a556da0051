// SPDX-License-Identifier: Apache-2.0
// The access rules of the checker on random plans of one rank, against comparing every pair of
// steps (order by following edges) and every single element (written or not).
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <set>

#include "plan/check.hpp"
#include "plan_ring.hpp"

namespace tessera::plan {
namespace {

constexpr int k_steps = 30, k_rows = 5, k_columns = 4;

/// Random rectangles of two scratch buffers, three queues, few random waits.
Program random_program(std::mt19937& random) {
  auto pick = [&](int below) { return static_cast<int>(random() % below); };
  Program program;
  Plan& plan = program.plans.emplace_back();
  plan.queues.resize(3);
  for (int i = 0; i < 2; ++i) {
    plan.buffers.push_back({"x", Role::scratch, DType::f32, {k_rows, k_columns, 1}, false});
  }
  for (int s = 0; s < k_steps; ++s) {
    Step step;
    step.queue = static_cast<std::int8_t>(pick(3));
    step.first_use = static_cast<std::uint32_t>(plan.use_pool.size());
    step.num_use = 1;
    const int r = pick(k_rows), c = pick(k_columns);
    plan.use_pool.push_back({pick(2),
                             Access(pick(3)),
                             {r, r + 1 + pick(k_rows - r)},
                             {c, c + 1 + pick(k_columns - c)}});
    step.first_after = static_cast<std::uint32_t>(plan.after_pool.size());
    for (int e = pick(4) / 2; s > 0 && e > 0; --e) plan.after_pool.push_back(pick(s));
    step.num_after = static_cast<std::uint32_t>(plan.after_pool.size()) - step.first_after;
    plan.steps.push_back(step);
  }
  return program;
}

/// Steps that conflict with an earlier one without being ordered after it.
std::set<int> unordered_steps(const Plan& plan) {
  const testing::Reachable oracle(plan);
  std::set<int> found;
  for (int j = 0; j < k_steps; ++j) {
    const Use& b = plan.use_pool[j];
    for (int i = 0; i < j; ++i) {
      const Use& a = plan.use_pool[i];
      const bool conflict = a.buffer == b.buffer && a.d0.overlaps(b.d0) && a.d1.overlaps(b.d1) &&
                            (a.access != Access::read || b.access != Access::read);
      if (conflict && !oracle.ordered(i, j)) found.insert(j);
    }
  }
  return found;
}

/// Steps that read an element which no earlier step of the list writes.
std::set<int> reads_of_nothing(const Plan& plan) {
  bool written[2][k_rows][k_columns] = {};
  std::set<int> found;
  for (int j = 0; j < k_steps; ++j) {
    const Use& use = plan.use_pool[j];
    for (auto r = use.d0.begin; r < use.d0.end; ++r) {
      for (auto c = use.d1.begin; c < use.d1.end; ++c) {
        if (use.access != Access::write && !written[use.buffer][r][c]) found.insert(j);
      }
    }
    for (auto r = use.d0.begin; r < use.d0.end && use.access != Access::read; ++r) {
      for (auto c = use.d1.begin; c < use.d1.end; ++c) written[use.buffer][r][c] = true;
    }
  }
  return found;
}

TEST(PlanOrder, random_plans_agree_with_comparing_every_pair_and_element) {
  std::mt19937 random(8);
  std::size_t unordered = 0, unwritten = 0;
  for (int round = 0; round < 400; ++round) {
    const Program program = random_program(random);
    std::set<int> order_faults, read_faults;
    for (const Fault& f : check(program)) {
      (f.name == fault::read_before_write ? read_faults : order_faults).insert(f.step);
    }
    ASSERT_EQ(order_faults, unordered_steps(program.plans[0])) << "round " << round;
    ASSERT_EQ(read_faults, reads_of_nothing(program.plans[0])) << "round " << round;
    unordered += order_faults.size();
    unwritten += read_faults.size();
  }
  std::printf("%zu steps without order, %zu reads of nothing, all found and no other\n", unordered,
              unwritten);
  EXPECT_GT(unordered, 1000u);
  EXPECT_GT(unwritten, 500u);
}

}  // namespace
}  // namespace tessera::plan

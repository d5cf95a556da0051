// SPDX-License-Identifier: Apache-2.0
// Single faults put into a clean ring program at random places: each must be found by its name.
// What a removed wait leads to is decided by an oracle that follows every edge.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <random>

#include "plan/check.hpp"
#include "plan_inject.hpp"
#include "plan_ring.hpp"

namespace tessera::plan {
namespace {

using testing::conflict;
using testing::erase_step;
using testing::exchange;
using testing::k_tile;
using testing::Reachable;
using testing::ring_program;

constexpr int k_trials = 40;

class PlanFaults : public ::testing::TestWithParam<int> {
 protected:
  int pick(int below) { return static_cast<int>(random_() % below); }

  /// A random step of a random rank that satisfies `accept`, as (plan, step).
  std::pair<int, int> pick_step(const Program& program,
                                const std::function<bool(const Plan&, const Step&)>& accept) {
    while (true) {
      const int rank = pick(static_cast<int>(program.plans.size()));
      const Plan& plan = program.plans[rank];
      const int step = pick(static_cast<int>(plan.steps.size()));
      if (accept(plan, plan.steps[step])) return {rank, step};
    }
  }
  std::pair<int, int> pick_kind(const Program& program, StepKind kind) {
    return pick_step(program, [&](const Plan&, const Step& s) { return s.kind == kind; });
  }

  /// Applies `inject` to fresh programs and expects the fault that it names.
  void expect_each(std::string_view what,
                   const std::function<std::optional<std::string_view>(Program&)>& inject) {
    int found = 0;
    for (int trial = 0; trial < k_trials; ++trial) {
      Program program = ring_program(GetParam(), 3);
      const auto expected = inject(program);
      const auto faults = check(program);
      if (!expected) {
        EXPECT_TRUE(faults.empty()) << what << ": " << faults[0].name << " " << faults[0].message;
        continue;
      }
      const auto hit = std::find_if(faults.begin(), faults.end(),
                                    [&](const Fault& f) { return f.name == *expected; });
      ASSERT_NE(hit, faults.end()) << what << ", trial " << trial << ": no '" << *expected << "'"
                                   << (faults.empty() ? "" : " but " + faults[0].message);
      ++found;
      if (trial == 0)
        std::printf("%s -> [%s] %s\n", what.data(), hit->name.data(), hit->message.c_str());
    }
    EXPECT_GT(found, k_trials / 4);
  }

 private:
  std::mt19937 random_{static_cast<unsigned>(GetParam())};
};

TEST_P(PlanFaults, swapped_sends) {
  expect_each("swapped sends", [&](Program& p) {
    const auto [rank, a] = pick_kind(p, StepKind::send);
    int b = a;
    while (b == a || p.plans[rank].steps[b].kind != StepKind::send) {
      b = pick(static_cast<int>(p.plans[rank].steps.size()));
    }
    exchange(p.plans[rank].steps[a], p.plans[rank].steps[b]);
    return fault::swapped_messages;
  });
}

TEST_P(PlanFaults, dropped_receive) {
  expect_each("dropped receive", [&](Program& p) {
    const auto [rank, s] = pick_kind(p, StepKind::recv);
    erase_step(p.plans[rank], s);
    return fault::dropped_receive;
  });
}

TEST_P(PlanFaults, dropped_send) {
  expect_each("dropped send", [&](Program& p) {
    const auto [rank, s] = pick_kind(p, StepKind::send);
    erase_step(p.plans[rank], s);
    return fault::dropped_send;
  });
}

/// Removes a wait whose conflict has this name; expects it unless other edges still give the order.
std::optional<std::string_view> remove_wait(Plan& plan, int s, std::string_view name) {
  Step& step = plan.steps[s];
  for (std::uint32_t i = 0; i < step.num_after; ++i) {
    const std::int32_t dep = plan.after_pool[step.first_after + i];
    if (conflict(plan, dep, s) != name) continue;
    std::swap(plan.after_pool[step.first_after + i],
              plan.after_pool[step.first_after + step.num_after - 1]);
    --step.num_after;
    if (Reachable(plan).ordered(dep, s)) return std::nullopt;
    return name;
  }
  return std::nullopt;
}

TEST_P(PlanFaults, missing_wait) {
  expect_each("missing wait", [&](Program& p) {
    const auto [rank, s] = pick_step(p, [](const Plan& plan, const Step& step) {
      const int number = static_cast<int>(&step - plan.steps.data());
      const auto deps = plan.after(step);
      return std::any_of(deps.begin(), deps.end(), [&](int dep) {
        return conflict(plan, dep, number) == fault::missing_wait;
      });
    });
    return remove_wait(p.plans[rank], s, fault::missing_wait);
  });
}

TEST_P(PlanFaults, buffer_reused_too_early) {
  expect_each("buffer reused too early", [&](Program& p) {
    const auto [rank, s] = pick_step(p, [](const Plan& plan, const Step& step) {
      const int number = static_cast<int>(&step - plan.steps.data());
      const auto deps = plan.after(step);
      return std::any_of(deps.begin(), deps.end(), [&](int dep) {
        return conflict(plan, dep, number) == fault::reused_early;
      });
    });
    return remove_wait(p.plans[rank], s, fault::reused_early);
  });
}

TEST_P(PlanFaults, unordered_writes) {
  expect_each("unordered writes", [&](Program& p) {
    // A second queue writes the output without waiting for the tiles that do.
    const int rank = pick(GetParam());
    Plan& plan = p.plans[rank];
    plan.queues.push_back({QueueKind::compute, "second"});
    Step step;
    step.queue = static_cast<std::int8_t>(plan.queues.size() - 1);
    step.label = "ring.clear";
    step.first_use = static_cast<std::uint32_t>(plan.use_pool.size());
    step.num_use = 1;
    plan.use_pool.push_back({4, Access::write, {0, 1}, {0, 2}});
    plan.steps.push_back(step);
    return fault::unordered_writes;
  });
}

TEST_P(PlanFaults, duplicated_tile) {
  expect_each("duplicated tile", [&](Program& p) {
    const auto [rank, s] =
        pick_step(p, [](const Plan&, const Step& step) { return step.label == k_tile; });
    p.plans[rank].steps.push_back(p.plans[rank].steps[s]);
    return fault::duplicated_work;
  });
}

TEST_P(PlanFaults, missing_tile) {
  expect_each("missing tile", [&](Program& p) {
    const auto [rank, s] =
        pick_step(p, [](const Plan&, const Step& step) { return step.label == k_tile; });
    erase_step(p.plans[rank], s);
    return fault::missing_work;
  });
}

TEST_P(PlanFaults, unexpected_tile) {
  expect_each("unexpected tile", [&](Program& p) {
    const auto [rank, s] =
        pick_step(p, [](const Plan&, const Step& step) { return step.label == k_tile; });
    p.plans[rank].steps[s].index.j += 1000;
    return fault::unexpected_work;
  });
}

TEST_P(PlanFaults, wrong_size) {
  expect_each("wrong size", [&](Program& p) {
    const auto [rank, s] = pick_kind(p, pick(2) ? StepKind::send : StepKind::recv);
    Plan& plan = p.plans[rank];
    Step& step = plan.steps[s];
    if (pick(2)) {  // the payload alone
      step.comm.bytes += 4;
    } else {  // one row less, and consistent in itself
      plan.use_pool[step.first_use].d0.end -= 1;
      step.comm.bytes -= testing::k_width * 4;
    }
    return fault::size_mismatch;
  });
}

TEST_P(PlanFaults, wrong_content) {
  expect_each("wrong content", [&](Program& p) {
    const auto [rank, s] = pick_kind(p, StepKind::recv);
    p.plans[rank].steps[s].index.i += 1;
    return fault::content_mismatch;
  });
}

TEST_P(PlanFaults, wrong_collective_order) {
  expect_each("wrong collective order", [&](Program& p) {
    Plan& plan = p.plans[pick(GetParam())];
    exchange(plan.steps[plan.steps.size() - 1], plan.steps[plan.steps.size() - 2]);
    return fault::collective_order;
  });
}

TEST_P(PlanFaults, missing_collective) {
  expect_each("missing collective", [&](Program& p) {
    erase_step(p.plans[pick(GetParam())], static_cast<int>(p.plans[0].steps.size()) - 1);
    return fault::collective_order;
  });
}

TEST_P(PlanFaults, every_rank_sends_before_it_receives) {
  Program program = ring_program(GetParam());
  for (Plan& plan : program.plans) {
    for (Step& step : plan.steps) step.group = -1;
  }
  const auto faults = check(program);
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(faults[0].name, fault::deadlock);
  // Each rank contributes its receive, which stands behind the send, and the send, which needs it.
  const std::string cycle = "a cycle of " + std::to_string(2 * GetParam()) + " waits";
  EXPECT_NE(faults[0].message.find(cycle), std::string::npos) << faults[0].message;
  std::printf("%s\n", faults[0].message.c_str());
}

TEST_P(PlanFaults, chunk_that_never_came_is_read) {
  expect_each("read before write", [&](Program& p) {
    const int rank = pick(GetParam());  // the first chunk it receives, and the send of it
    auto& steps = p.plans[rank].steps;
    const auto recv = std::find_if(steps.begin(), steps.end(),
                                   [](const Step& s) { return s.kind == StepKind::recv; });
    const Comm comm = recv->comm;
    erase_step(p.plans[rank], static_cast<int>(recv - steps.begin()));
    auto& theirs = p.plans[comm.peer].steps;
    const auto send = std::find_if(theirs.begin(), theirs.end(), [&](const Step& s) {
      return s.kind == StepKind::send && s.comm.key == comm.key && s.comm.peer == rank;
    });
    erase_step(p.plans[comm.peer], static_cast<int>(send - theirs.begin()));
    return fault::read_before_write;
  });
}

TEST_P(PlanFaults, bad_references) {
  const std::vector<std::pair<const char*, std::function<void(Program&, Plan&, Step&)>>> wrongs{
      {"peer is the rank itself",
       [](Program& p, Plan& plan, Step& s) {
         s.comm.peer = static_cast<std::int32_t>(&plan - p.plans.data());
       }},
      {"peer out of range", [](Program&, Plan&, Step& s) { s.comm.peer = 99; }},
      {"axis out of range", [](Program&, Plan&, Step& s) { s.comm.axis = 1; }},
      {"queue out of range", [](Program&, Plan&, Step& s) { s.queue = 2; }},
      {"buffer out of range",
       [](Program&, Plan& plan, Step& s) { plan.use_pool[s.first_use].buffer = 50; }},
      {"range outside the buffer",
       [](Program&, Plan& plan, Step& s) { plan.use_pool[s.first_use].d0.end = 1000; }},
      {"wait for a later step",
       [](Program&, Plan& plan, Step& s) {
         s.first_after = static_cast<std::uint32_t>(plan.after_pool.size());
         s.num_after = 1;
         plan.after_pool.push_back(static_cast<std::int32_t>(plan.steps.size()) - 1);
       }},
      {"peer outside the group", [](Program& p, Plan&, Step& s) {
         auto& groups = p.axes[0].groups;
         std::erase(groups[0], s.comm.peer);
         groups.push_back({s.comm.peer});
       }}};
  for (const auto& [what, wrong] : wrongs) {
    expect_each(what, [&](Program& p) {
      const auto [rank, s] = pick_kind(p, StepKind::send);
      wrong(p, p.plans[rank], p.plans[rank].steps[s]);
      return fault::bad_reference;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PlanFaults, ::testing::Values(2, 3, 4, 9));

}  // namespace
}  // namespace tessera::plan

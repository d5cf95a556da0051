// SPDX-License-Identifier: Apache-2.0
// Every single fault at every place of every scheme's plans is found, by name: dropped messages,
// swapped sends, missing waits, buffers reused too early, tiles done twice or never.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "attention/labels.hpp"
#include "attention_cases.hpp"
#include "plan/check.hpp"
#include "plan_inject.hpp"
#include "plan_ring.hpp"

namespace tessera::test {
namespace {

using plan::Plan;
using plan::Program;
using plan::Step;
using plan::StepKind;

class AttentionFaults : public ::testing::TestWithParam<Pass> {
 protected:
  void expect(const Program& damaged, std::string_view name, const std::string& where) {
    const auto faults = plan::check(damaged);
    const bool found = std::any_of(faults.begin(), faults.end(),
                                   [&](const plan::Fault& f) { return f.name == name; });
    EXPECT_TRUE(found) << damaged.name << ": no '" << name << "' for " << where
                       << (faults.empty() ? "" : " but " + faults[0].message);
    ++injected_[std::string(name)];
  }

  void messages(const Program& good, int rank, int s) {
    const StepKind kind = good.plans[rank].steps[s].kind;
    if (kind != StepKind::send && kind != StepKind::recv) return;
    Program p = good;
    plan::testing::erase_step(p.plans[rank], s);
    expect(p, kind == StepKind::recv ? plan::fault::dropped_receive : plan::fault::dropped_send,
           fmt::format("rank {} step {}", rank, s));
  }

  void tiles(const Program& good, int rank, int s) {
    const std::string_view label = good.plans[rank].steps[s].label;
    if (label != label::forward_tile && label != label::backward_tile) return;
    Program twice = good;
    twice.plans[rank].steps.push_back(twice.plans[rank].steps[s]);
    twice.plans[rank].steps.back().num_after = 0;
    expect(twice, plan::fault::duplicated_work, fmt::format("rank {} step {}", rank, s));
    Program never = good;
    plan::testing::erase_step(never.plans[rank], s);
    expect(never, plan::fault::missing_work, fmt::format("rank {} step {}", rank, s));
  }

  void waits(const Program& good, int rank, int s) {
    for (std::uint32_t i = 0; i < good.plans[rank].steps[s].num_after; ++i) {
      Program p = good;
      Plan& damaged = p.plans[rank];
      Step& step = damaged.steps[s];
      const std::int32_t gone = damaged.after_pool[step.first_after + i];
      std::swap(damaged.after_pool[step.first_after + i],
                damaged.after_pool[step.first_after + step.num_after - 1]);
      --step.num_after;
      const std::string_view name = plan::testing::conflict(damaged, gone, s);
      if (name == "no conflict" || plan::testing::Reachable(damaged).ordered(gone, s)) continue;
      expect(p, name, fmt::format("rank {} step {} without its wait for {}", rank, s, gone));
    }
  }

  /// Exchanges a send with the next one of the rank to the same peer.
  void swaps(const Program& good, int rank, int s) {
    const auto& steps = good.plans[rank].steps;
    if (steps[s].kind != StepKind::send) return;
    for (int t = s + 1; t < std::ssize(steps); ++t) {
      if (steps[t].kind != StepKind::send || steps[t].comm.peer != steps[s].comm.peer ||
          steps[t].comm.axis != steps[s].comm.axis || steps[t].queue != steps[s].queue)
        continue;
      Program p = good;
      plan::testing::exchange(p.plans[rank].steps[s], p.plans[rank].steps[t]);
      return expect(p, plan::fault::swapped_messages,
                    fmt::format("rank {} sends {} and {}", rank, s, t));
    }
  }

  std::map<std::string, int> injected_;
};

TEST_P(AttentionFaults, EveryScheme_every_place) {
  const MaskShape s{1, 48, 48};
  for (int n : {4, 6}) {
    const Problem p = problem(s, causal_mask(s, false), 12, 12, 4, 4, DType::bf16, Layout::zigzag);
    for (const Scheme& x : schemes_for(p, n)) {
      const Program good = make_program(p, x, n, GetParam(), test_machine());
      ASSERT_TRUE(plan::check(good).empty()) << good.name;
      const int rank = n - 1;
      for (int step = 0; step < std::ssize(good.plans[rank].steps); ++step) {
        messages(good, rank, step);
        tiles(good, rank, step);
        waits(good, rank, step);
        swaps(good, rank, step);
      }
    }
  }
  for (const auto& [name, count] : injected_)
    fmt::print("{}: {} injected, all found\n", name, count);
  EXPECT_GE(injected_.size(), 6u);
}

INSTANTIATE_TEST_SUITE_P(Passes, AttentionFaults, ::testing::Values(Pass::forward, Pass::backward),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tessera::test

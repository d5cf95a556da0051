// SPDX-License-Identifier: Apache-2.0
// The order in which a device run starts the units of a plan. Transfers of several comm queues go
// over several NCCL communicators, whose kernels must come in one order on all ranks (OB-102): no
// program may deadlock even if each transfer waits for the end of the one started before it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "attention_cases.hpp"
#include "exec/order.hpp"
#include "plan/builder.hpp"
#include "plan/check.hpp"
#include "plan/graph.hpp"
#include "plan_queues.hpp"

namespace tessera::test {
namespace {

/// The same plan with its steps in the order of the launches and all transfers on one queue.
plan::Plan chained(const plan::Plan& plan, const std::vector<exec::QueueSteps>& queues) {
  plan::Plan out = plan;
  out.queues.push_back({plan::QueueKind::comm, "chain"});
  out.steps.clear(), out.after_pool.clear();
  std::vector<std::int32_t> place(plan.steps.size(), -1);
  for (const exec::Launch& launch : exec::launch_order(plan, queues)) {
    const exec::QueueSteps& q = queues[launch.queue];
    for (std::size_t i = q.units[launch.unit].begin; i < q.units[launch.unit].end; ++i) {
      const auto old = static_cast<std::size_t>(q.steps[i]);
      plan::Step step = plan.steps[old];
      if (q.comm) step.queue = static_cast<std::int8_t>(out.queues.size() - 1);
      step.first_after = static_cast<std::uint32_t>(out.after_pool.size());
      for (const std::int32_t a : plan.after(plan.steps[old])) {
        EXPECT_GE(place[static_cast<std::size_t>(a)], 0) << "a step before what it waits for";
        out.after_pool.push_back(place[static_cast<std::size_t>(a)]);
      }
      place[old] = static_cast<std::int32_t>(out.steps.size());
      out.steps.push_back(step);
    }
  }
  return out;
}

plan::Program chained(const plan::Program& program) {
  const plan::Graph graph = plan::make_graph(program);
  plan::Program out = program;
  for (std::size_t r = 0; r < program.plans.size(); ++r)
    out.plans[r] = chained(program.plans[r], queues_of(graph, r));
  return out;
}

bool has_two_comm_queues(const plan::Plan& plan) {
  int number = 0;
  for (const plan::Queue& q : plan.queues) number += q.kind == plan::QueueKind::comm;
  return number > 1;
}

TEST(ExecOrder, OB_102_transfers_of_all_queues_have_one_order_on_all_ranks) {
  const std::vector<std::int64_t> docs{3, 7, 20, 1, 9};
  int programs = 0, with_two = 0;
  for (int n : {2, 3, 4, 6, 8, 9, 12, 16})
    for (Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped, Layout::balanced}) {
      const MaskShape s{1, 50, 50}, two{2, 50, 50};
      std::vector<Problem> problems{
          problem(s, full_mask(s), 144, 144, 4, 3, DType::f32, layout),
          problem(s, causal_mask(s, false), 144, 72, 4, 4, DType::f32, layout),
          problem(two, window_mask(two, 5), 144, 3, 4, 4, DType::f32, layout),
          problem(s, document_mask(s, docs, true), 144, 1, 4, 4, DType::f32, layout)};
      problems[1].sink = true;
      for (const Problem& p : problems)
        for (const Scheme& x : schemes_for(p, n))
          for (Pass pass : {Pass::forward, Pass::backward}) {
            const plan::Program program =
                make_program(p, choose(p, x, n, pass, test_machine()), n, pass, test_machine());
            for (const plan::Fault& f : plan::check(chained(program)))
              ADD_FAILURE() << program.name << " n " << n << ": " << f.name << ": " << f.message;
            ++programs, with_two += has_two_comm_queues(program.plans[0]);
          }
    }
  EXPECT_GT(with_two, 0);
  fmt::print("{} programs, {} with two comm queues\n", programs, with_two);
}

/// Two ranks that exchange a message on each of two queues.
plan::Program two_exchanges(bool second_rank_turned) {
  plan::Program program{
      "two exchanges", {{"a", {{0, 1}}}, {"b", {{0, 1}}}}, std::vector<plan::Plan>(2), {}};
  for (int rank : {0, 1}) {
    plan::Builder b(program.plans[static_cast<std::size_t>(rank)]);
    b.queue(plan::QueueKind::compute, "compute");
    const int queues[] = {b.queue(plan::QueueKind::comm, "a"), b.queue(plan::QueueKind::comm, "b")};
    for (int i : {0, 1}) {
      const int which = rank == 1 && second_rank_turned ? 1 - i : i, group = b.new_group();
      const auto buffer = [&](const char* name, plan::Role role) {
        return b.buffer({fmt::format("{}{}", name, which), role, DType::f32, {4, 1, 1}});
      };
      const plan::Use out = b.all(buffer("out", plan::Role::input), plan::Access::read);
      const plan::Use in = b.all(buffer("in", plan::Role::output), plan::Access::write);
      b.send(queues[which], group, "exchange", {}, which, 1 - rank, 0, {out});
      b.recv(queues[which], group, "exchange", {}, which, 1 - rank, 0, {in});
    }
  }
  return program;
}

TEST(ExecOrder, OB_102_ranks_that_disagree_are_seen) {
  for (bool turned : {false, true}) {
    const plan::Program program = two_exchanges(turned);
    for (const plan::Fault& f : plan::check(program)) ADD_FAILURE() << f.name << ": " << f.message;
    const std::vector<plan::Fault> faults = plan::check(chained(program));
    ASSERT_EQ(faults.size(), turned ? 1u : 0u);
    for (const plan::Fault& f : faults) EXPECT_EQ(f.name, plan::fault::deadlock) << f.message;
  }
}

TEST(ExecOrder, A_unit_starts_where_the_plan_has_it_or_after_what_it_waits_for) {
  // Queue "late" is the last one and its first transfer comes first; the second transfer of queue
  // "early" has a step of the compute queue between its own two.
  plan::Program program{"mixed", {{"all", {{0, 1}}}}, std::vector<plan::Plan>(2), {}};
  plan::Builder b(program.plans[0]);
  const int compute = b.queue(plan::QueueKind::compute, "compute");
  const int early = b.queue(plan::QueueKind::comm, "early");
  const int late = b.queue(plan::QueueKind::comm, "late");
  const auto whole = [&](const char* name, plan::Access access) {
    return b.all(b.buffer({name, plan::Role::input, DType::f32, {4, 1, 1}}), access);
  };
  const plan::Use x = whole("x", plan::Access::write), y = whole("y", plan::Access::write);
  plan::Use x_read = x;
  x_read.access = plan::Access::read;
  b.send(late, -1, "first", {}, 0, 1, 0, {whole("a", plan::Access::read)});
  const int group = b.new_group();
  b.send(early, group, "second", {}, 0, 1, 1, {whole("b", plan::Access::read)});
  b.compute(compute, "between", {}, {}, {x});
  b.send(early, group, "second", {}, 0, 1, 2, {x_read});  // what the step between wrote
  b.recv(late, -1, "third", {}, 0, 1, 3, {y});
  const plan::Graph graph = plan::make_graph(program);
  std::string order;
  const auto queues = queues_of(graph, 0);
  for (const exec::Launch& launch : exec::launch_order(program.plans[0], queues)) {
    const exec::QueueSteps& q = queues[launch.queue];
    const auto first = static_cast<std::size_t>(q.steps[q.units[launch.unit].begin]);
    order += fmt::format("{} ", program.plans[0].steps[first].label);
  }
  EXPECT_EQ(order, "first between second third ");
}

TEST(ExecOrder, A_circle_of_waits_is_refused) {
  plan::Program program = two_exchanges(false);
  plan::Plan& plan = program.plans[0];
  plan.after_pool = {2, 0};  // the first exchange after the second, the second after the first
  plan.steps[0].first_after = 0, plan.steps[0].num_after = 1;
  plan.steps[2].first_after = 1, plan.steps[2].num_after = 1;
  const plan::Graph graph = plan::make_graph(program);
  EXPECT_THROW(exec::launch_order(plan, queues_of(graph, 0)), std::logic_error);
}

}  // namespace
}  // namespace tessera::test

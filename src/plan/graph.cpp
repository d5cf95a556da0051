// SPDX-License-Identifier: Apache-2.0
// Builds the graph of a program: units by queue order, followers by `after` lists, sends and
// receives by key, collectives by order.
#include "plan/graph.hpp"

#include <algorithm>
#include <tuple>

namespace tessera::plan {

namespace {

void add_units(Graph& graph, int rank) {
  const Plan& plan = graph.program->plans[rank];
  const std::int32_t base = graph.step_base[rank];
  std::vector<std::vector<std::int32_t>> by_queue(plan.queues.size());
  for (std::size_t s = 0; s < plan.steps.size(); ++s) {
    by_queue[plan.steps[s].queue].push_back(static_cast<std::int32_t>(s));
  }
  for (std::size_t q = 0; q < by_queue.size(); ++q) {
    std::int32_t last = -1;  // unit
    const Step* previous = nullptr;
    for (const std::int32_t s : by_queue[q]) {
      const Step& step = plan.steps[s];
      const bool joins = previous && step.group >= 0 && step.group == previous->group &&
                         is_comm(step.kind) && is_comm(previous->kind);
      if (!joins) {
        const auto id = static_cast<std::int32_t>(graph.units.size());
        Unit unit{rank,
                  static_cast<std::int32_t>(graph.members.size()),
                  0,
                  last,
                  -1,
                  0,
                  static_cast<std::int8_t>(q)};
        if (last >= 0) {
          graph.units[last].next = id;
          unit.position = graph.units[last].position + 1;
        }
        graph.units.push_back(unit);
        last = id;
      }
      ++graph.units[last].num_members;
      graph.members.push_back(base + s);
      graph.unit_of[base + s] = last;
      previous = &step;
    }
  }
  graph.unit_base[rank + 1] = static_cast<std::int32_t>(graph.units.size());
}

void add_followers(Graph& graph) {
  const std::size_t num_steps = graph.unit_of.size();
  graph.first_follower.assign(num_steps + 1, 0);
  auto each_edge = [&](auto&& visit) {
    for (std::size_t r = 0; r < graph.program->plans.size(); ++r) {
      const Plan& plan = graph.program->plans[r];
      const std::int32_t base = graph.step_base[r];
      for (std::size_t s = 0; s < plan.steps.size(); ++s) {
        for (const std::int32_t dep : plan.after(plan.steps[s])) {
          visit(base + dep, graph.unit_of[base + s]);
        }
      }
    }
  };
  each_edge([&](std::int32_t dep, std::int32_t) { ++graph.first_follower[dep + 1]; });
  for (std::size_t s = 0; s < num_steps; ++s) {
    graph.first_follower[s + 1] += graph.first_follower[s];
  }
  graph.followers.resize(graph.first_follower[num_steps]);
  std::vector<std::uint32_t> next(graph.first_follower.begin(), graph.first_follower.end() - 1);
  each_edge([&](std::int32_t dep, std::int32_t unit) { graph.followers[next[dep]++] = unit; });
}

struct End {
  std::int32_t source, key, step;
  std::int16_t axis;
  auto match() const { return std::tie(source, axis, key); }
  bool operator<(const End& o) const {
    return std::tie(source, axis, key, step) < std::tie(o.source, o.axis, o.key, o.step);
  }
};

void match_messages(Graph& graph) {
  const std::size_t num_ranks = graph.program->plans.size();
  std::vector<std::vector<End>> sends(num_ranks), recvs(num_ranks);  // by destination
  for (std::size_t r = 0; r < num_ranks; ++r) {
    const auto rank = static_cast<std::int32_t>(r);
    std::int32_t global = graph.step_base[r];
    for (const Step& step : graph.program->plans[r].steps) {
      const Comm& c = step.comm;
      if (step.kind == StepKind::send) sends[c.peer].push_back({rank, c.key, global, c.axis});
      if (step.kind == StepKind::recv) recvs[r].push_back({c.peer, c.key, global, c.axis});
      ++global;
    }
  }
  for (std::size_t r = 0; r < num_ranks; ++r) {
    std::sort(sends[r].begin(), sends[r].end());
    std::sort(recvs[r].begin(), recvs[r].end());
    auto send = sends[r].begin();
    auto recv = recvs[r].begin();
    while (send != sends[r].end() && recv != recvs[r].end()) {
      if (send->match() < recv->match()) {
        ++send;
      } else if (recv->match() < send->match()) {
        ++recv;
      } else {
        graph.partner[send->step] = recv->step;
        graph.partner[recv->step] = send->step;
        ++send, ++recv;
      }
    }
  }
}

void match_collectives(Graph& graph) {
  const Program& program = *graph.program;
  const std::size_t num_ranks = program.plans.size();
  for (std::size_t a = 0; a < program.axes.size(); ++a) {
    const auto groups = group_of_rank(program.axes[a], num_ranks);
    std::vector<std::vector<std::int32_t>> meetings(program.axes[a].groups.size());
    for (std::size_t r = 0; r < num_ranks; ++r) {
      std::size_t count = 0;
      std::int32_t global = graph.step_base[r] - 1;
      for (const Step& step : program.plans[r].steps) {
        ++global;
        if (step.kind != StepKind::all_reduce || step.comm.axis != static_cast<int>(a)) continue;
        auto& mine = meetings[groups[r]];
        if (count == mine.size()) {
          mine.push_back(static_cast<std::int32_t>(graph.meetings.size()));
          const auto size = program.axes[a].groups[groups[r]].size();
          graph.meetings.push_back(
              {static_cast<std::int32_t>(a), groups[r], static_cast<std::int32_t>(size), {}});
        }
        graph.meeting_of[global] = mine[count++];
        graph.meetings[graph.meeting_of[global]].members.push_back(global);
      }
    }
  }
}

}  // namespace

std::vector<std::int32_t> group_of_rank(const Axis& axis, std::size_t num_ranks) {
  std::vector<std::int32_t> result(num_ranks, -1);
  for (std::size_t g = 0; g < axis.groups.size(); ++g) {
    for (const std::int32_t rank : axis.groups[g]) result[rank] = static_cast<std::int32_t>(g);
  }
  return result;
}

Graph make_graph(const Program& program) {
  Graph graph;
  graph.program = &program;
  graph.step_base.push_back(0);
  for (const Plan& plan : program.plans) {
    graph.step_base.push_back(graph.step_base.back() +
                              static_cast<std::int32_t>(plan.steps.size()));
  }
  graph.unit_base.assign(program.plans.size() + 1, 0);
  graph.unit_of.assign(graph.step_base.back(), -1);
  graph.partner.assign(graph.step_base.back(), -1);
  graph.meeting_of.assign(graph.step_base.back(), -1);
  for (std::size_t r = 0; r < program.plans.size(); ++r) add_units(graph, static_cast<int>(r));
  add_followers(graph);
  match_messages(graph);
  match_collectives(graph);
  return graph;
}

Progress::Progress(const Graph& graph) : graph_(graph) {
  waits_.assign(graph.units.size(), 0);
  left_.reserve(graph.units.size());
  complete_.assign(graph.unit_of.size(), false);
  for (const std::int32_t unit : graph.followers) ++waits_[unit];
  for (std::size_t u = 0; u < graph.units.size(); ++u) {
    left_.push_back(graph.units[u].num_members);
    if (graph.units[u].previous >= 0) ++waits_[u];
    if (waits_[u] == 0) startable.push_back(static_cast<std::int32_t>(u));
  }
}

void Progress::release(std::int32_t unit) {
  if (--waits_[unit] == 0) startable.push_back(unit);
}

void Progress::complete(std::int32_t step) {
  complete_[step] = true;
  ++num_complete_;
  for (const std::int32_t unit : graph_.followers_of(step)) release(unit);
  const std::int32_t own = graph_.unit_of[step];
  if (--left_[own] == 0 && graph_.units[own].next >= 0) release(graph_.units[own].next);
}

}  // namespace tessera::plan

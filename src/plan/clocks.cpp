// SPDX-License-Identifier: Apache-2.0
// Vector clocks over the queues of one rank, in topological order of its units.
#include "plan/clocks.hpp"

namespace tessera::plan {

Clocks::Clocks(const Graph& graph, int rank)
    : graph_(graph),
      unit_base_(graph.unit_base[rank]),
      step_base_(graph.step_base[rank]),
      num_queues_(static_cast<std::int32_t>(graph.program->plans[rank].queues.size())) {
  const std::int32_t num_units = graph.unit_base[rank + 1] - unit_base_;
  known_.resize(static_cast<std::size_t>(num_units) * num_queues_);
  place_.resize(graph.step_base[rank + 1] - step_base_);
  std::vector<std::int32_t> waits(num_units, 0), ready;
  for (std::int32_t u = 0; u < num_units; ++u) {
    const Unit& unit = graph.units[unit_base_ + u];
    std::int32_t place = 0;
    for (const std::int32_t step : graph.members_of(unit)) {
      place_[step - step_base_] = place++;
      for (const std::int32_t next : graph.followers_of(step)) ++waits[next - unit_base_];
    }
    if (unit.next >= 0) ++waits[unit.next - unit_base_];
  }
  for (std::int32_t u = 0; u < num_units; ++u) {
    if (waits[u] == 0) ready.push_back(unit_base_ + u);
  }
  std::int32_t num_visited = 0;
  auto release = [&](std::int32_t unit) {
    if (--waits[unit - unit_base_] == 0) ready.push_back(unit);
  };
  while (!ready.empty()) {
    const std::int32_t unit = ready.back();
    ready.pop_back();
    visit(unit);
    ++num_visited;
    for (const std::int32_t step : graph.members_of(graph.units[unit])) {
      for (const std::int32_t next : graph.followers_of(step)) release(next);
    }
    if (graph.units[unit].next >= 0) release(graph.units[unit].next);
  }
  cyclic_ = num_visited < num_units;
}

/// Takes over what the predecessors know; all of them have been visited.
void Clocks::visit(std::int32_t id) {
  const Unit& unit = graph_.units[id];
  const Plan& plan = graph_.program->plans[unit.rank];
  Known* mine = clock(id);
  if (unit.previous >= 0) {
    const Known* before = clock(unit.previous);
    for (std::int32_t q = 0; q < num_queues_; ++q) join(mine[q], before[q]);
    join(mine[unit.queue], {unit.position, -1});
  }
  for (const std::int32_t step : graph_.members_of(unit)) {
    for (const std::int32_t dep : plan.after(plan.steps[step - step_base_])) learn(mine, dep);
  }
}

void Clocks::learn(Known* mine, std::int32_t step) {
  const std::int32_t id = graph_.unit_of[step_base_ + step];
  const Unit& unit = graph_.units[id];
  const Known* theirs = clock(id);
  for (std::int32_t q = 0; q < num_queues_; ++q) join(mine[q], theirs[q]);
  if (unit.num_members == 1) {
    join(mine[unit.queue], {unit.position + 1, -1});
  } else if (mine[unit.queue].complete <= unit.position) {
    Members members(unit.num_members, false);
    members[place_[step]] = true;
    partials_.push_back(std::move(members));
    join(mine[unit.queue], {unit.position, static_cast<std::int32_t>(partials_.size()) - 1});
  }
}

void Clocks::join(Known& into, Known from) {
  if (from.complete != into.complete) {
    if (from.complete > into.complete) into = from;
    return;
  }
  if (from.partial < 0 || from.partial == into.partial) return;
  if (into.partial < 0) {
    into.partial = from.partial;
    return;
  }
  const Members &a = partials_[into.partial], &b = partials_[from.partial];
  Members both(a);
  bool whole = true;
  for (std::size_t m = 0; m < both.size(); ++m) {
    both[m] = a[m] || b[m];
    whole = whole && both[m];
  }
  if (whole) {
    into = {into.complete + 1, -1};
  } else if (both == b) {
    into.partial = from.partial;
  } else if (both != a) {
    partials_.push_back(std::move(both));
    into.partial = static_cast<std::int32_t>(partials_.size()) - 1;
  }
}

bool Clocks::ordered(std::int32_t a, std::int32_t b) const {
  const std::int32_t of_a = graph_.unit_of[step_base_ + a];
  const Unit& unit = graph_.units[of_a];
  const Known& known = clock(graph_.unit_of[step_base_ + b])[unit.queue];
  if (known.complete != unit.position) return known.complete > unit.position;
  return known.partial >= 0 && partials_[known.partial][place_[a]];
}

}  // namespace tessera::plan

// SPDX-License-Identifier: Apache-2.0
#include "exec/order.hpp"

#include <limits>
#include <stdexcept>

namespace tessera::exec {

namespace {

/// The builder leaves out waits that the order of a queue implies, so the only wait of a step may
/// stand at a clearing before it. What is left out without being awaited hands its waits on: what
/// comes next may start on the second lane, which did not wait for the first. Those of the last
/// step of a queue need not go anywhere: the end of a run waits for all queues.
void carry_waits(std::vector<Ordered>& all, const std::vector<QueueSteps>& queues,
                 std::span<const char> idle) {
  for (std::size_t q = 0; q < queues.size(); ++q) {
    std::vector<int> carried;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Ordered& e = all[i];
      if (e.queue != q) continue;
      e.waits.insert(e.waits.begin(), carried.begin(), carried.end());
      carried.clear();
      if (idle[i]) carried.swap(e.waits);
    }
  }
}

/// The places of what a compute queue runs, which includes what is awaited though it does nothing:
/// who waits for it waits for all before it.
void choose_lanes(const plan::Plan& plan, std::vector<Ordered>& all, std::size_t queue,
                  const QueueSteps& steps_of, std::span<const char> idle, const OrderRules& rules) {
  std::vector<std::size_t> places;
  std::vector<std::int32_t> steps;
  std::vector<Cut> cuts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].queue != queue || idle[i]) continue;
    const std::int32_t step = steps_of.steps[all[i].unit.begin];
    const auto at = static_cast<std::size_t>(step);
    places.push_back(i);
    steps.push_back(step);
    cuts.push_back(rules.skipped[at] ? Cut{} : rules.cut(at));
  }
  const std::vector<LaneStep> lanes = lanes_of(plan, steps, cuts, rules.long_from);
  for (std::size_t i = 0; i < places.size(); ++i) {
    all[places[i]].lane = lanes[i];
    if (lanes[i].split) all[places[i]].cut = std::move(cuts[i]);
  }
}

}  // namespace

std::vector<Launch> launch_order(const plan::Plan& plan, const std::vector<QueueSteps>& queues) {
  std::vector<char> taken(plan.steps.size());
  std::vector<std::size_t> next(queues.size());
  std::vector<Launch> out;
  const auto ready = [&](const QueueSteps& q, Unit unit) {
    for (std::size_t i = unit.begin; i < unit.end; ++i)
      for (const std::int32_t a : plan.after(plan.steps[static_cast<std::size_t>(q.steps[i])]))
        if (!taken[static_cast<std::size_t>(a)]) return false;
    return true;
  };
  while (true) {
    std::size_t best = queues.size();
    std::int32_t first = std::numeric_limits<std::int32_t>::max();
    for (std::size_t q = 0; q < queues.size(); ++q) {
      if (next[q] == queues[q].units.size()) continue;
      const Unit unit = queues[q].units[next[q]];
      const std::int32_t step = queues[q].steps[unit.begin];
      if (step < first && ready(queues[q], unit)) best = q, first = step;
    }
    if (best == queues.size()) break;
    const Unit unit = queues[best].units[next[best]];
    for (std::size_t i = unit.begin; i < unit.end; ++i)
      taken[static_cast<std::size_t>(queues[best].steps[i])] = true;
    out.push_back({best, next[best]++});
  }
  for (std::size_t q = 0; q < queues.size(); ++q)
    if (next[q] < queues[q].units.size())
      throw std::logic_error("a plan whose queues wait for each other in a circle");
  return out;
}

std::vector<Ordered> order_of(const plan::Plan& plan, const std::vector<QueueSteps>& queues,
                              const OrderRules& rules) {
  std::vector<Ordered> out;
  std::vector<int> place_of(plan.steps.size(), -1);
  int last = -1;  // unit of messages
  const auto wait = [&](Ordered& e, int on) {
    if (out[static_cast<std::size_t>(on)].queue == e.queue) return;
    e.waits.push_back(on);
    out[static_cast<std::size_t>(on)].awaited = true;
  };
  for (const Launch& launch : launch_order(plan, queues)) {
    const QueueSteps& q = queues[launch.queue];
    Ordered e{launch.queue, q.units[launch.unit], {}, false, {}, {}};
    for (std::size_t i = e.unit.begin; i < e.unit.end; ++i)
      for (const std::int32_t a : plan.after(plan.steps[static_cast<std::size_t>(q.steps[i])]))
        wait(e, place_of[static_cast<std::size_t>(a)]);
    for (std::size_t i = e.unit.begin; i < e.unit.end; ++i)
      place_of[static_cast<std::size_t>(q.steps[i])] = static_cast<int>(out.size());
    if (q.comm) {
      if (rules.in_turn && last >= 0) wait(e, last);
      last = static_cast<int>(out.size());
    }
    out.push_back(std::move(e));
  }
  std::vector<char> idle;
  for (const Ordered& e : out) {
    const auto step = static_cast<std::size_t>(queues[e.queue].steps[e.unit.begin]);
    idle.push_back(rules.skipped[step] && !e.awaited);
  }
  carry_waits(out, queues, idle);
  for (std::size_t q = 0; q < queues.size(); ++q)
    if (!queues[q].comm) choose_lanes(plan, out, q, queues[q], idle, rules);
  return out;
}

}  // namespace tessera::exec

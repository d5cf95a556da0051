// SPDX-License-Identifier: Apache-2.0
// Rule "deadlock": replays the program with zero buffering (a message moves only when both sides
// have started) and zero durations. Whatever is left when nothing can move any more is stuck; the
// message follows one chain of waiting steps until it closes or ends.
#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "plan/check_rules.hpp"

namespace tessera::plan {

namespace {

class Replay {
 public:
  explicit Replay(const Graph& graph)
      : graph_(graph), progress_(graph), arrived_(graph.meetings.size(), 0) {
    started_.assign(graph.units.size(), false);
  }

  void run() {
    while (!progress_.startable.empty()) {
      const std::int32_t unit = progress_.startable.back();
      progress_.startable.pop_back();
      started_[unit] = true;
      for (const std::int32_t step : graph_.members_of(graph_.units[unit])) arrive(step);
    }
  }

  bool done() const {
    return progress_.num_complete() == static_cast<std::int64_t>(graph_.unit_of.size());
  }

  /// First unit of the program, by rank and queue, that never finishes.
  std::int32_t first_stuck() const {
    for (std::size_t u = 0; u < graph_.units.size(); ++u) {
      if (!progress_.is_finished(static_cast<std::int32_t>(u))) return static_cast<std::int32_t>(u);
    }
    return -1;
  }

  struct Wait {
    std::int32_t step = -1;  ///< the step that waits
    std::int32_t on = -1;    ///< the step it waits for; -1: nothing that exists
    std::string reason;
  };

  /// Why a unit is not finished.
  Wait why(std::int32_t unit) const {
    return started_[unit] ? why_running(unit) : why_not_started(unit);
  }

 private:
  void arrive(std::int32_t step) {
    const StepKind kind = graph_.step(step).kind;
    if (kind == StepKind::all_reduce) {
      const std::int32_t m = graph_.meeting_of[step];
      if (++arrived_[m] < graph_.meetings[m].expected) return;
      for (const std::int32_t member : graph_.meetings[m].members) progress_.complete(member);
    } else if (is_comm(kind)) {
      const std::int32_t other = graph_.partner[step];
      if (other < 0 || !started_[graph_.unit_of[other]]) return;
      progress_.complete(step);
      progress_.complete(other);
    } else {
      progress_.complete(step);
    }
  }

  Wait why_running(std::int32_t unit) const {
    for (const std::int32_t step : graph_.members_of(graph_.units[unit])) {
      if (progress_.is_complete(step)) continue;
      if (graph_.partner[step] >= 0) return {step, graph_.partner[step], "needs its other side"};
      if (graph_.meeting_of[step] < 0) return {step, -1, "has no other side"};
      const Meeting& meeting = graph_.meetings[graph_.meeting_of[step]];
      for (const std::int32_t member : meeting.members) {
        if (!started_[graph_.unit_of[member]]) return {step, member, "needs all members"};
      }
      return {step, -1, "has members that never come"};
    }
    return {};
  }

  Wait why_not_started(std::int32_t unit) const {
    const Unit& u = graph_.units[unit];
    const Plan& plan = graph_.program->plans[u.rank];
    const std::int32_t base = graph_.step_base[u.rank];
    for (const std::int32_t step : graph_.members_of(u)) {
      for (const std::int32_t dep : plan.after(plan.steps[step - base])) {
        if (!progress_.is_complete(base + dep)) return {step, base + dep, "waits for"};
      }
    }
    const Unit& before = graph_.units[u.previous];
    for (const std::int32_t step : graph_.members_of(before)) {
      if (!progress_.is_complete(step)) {
        return {graph_.members[u.first_member], step, "stands in its queue behind"};
      }
    }
    return {};
  }

  const Graph& graph_;
  Progress progress_;
  std::vector<bool> started_;          // per unit
  std::vector<std::int32_t> arrived_;  // per meeting
};

/// Follows the chain of reasons from one stuck unit; keeps the cycle alone when it closes.
std::vector<Replay::Wait> chain_from(const Replay& replay, const Graph& graph, std::int32_t unit,
                                     bool& closed) {
  std::vector<Replay::Wait> chain;
  std::unordered_map<std::int32_t, std::size_t> seen;  // unit -> place in the chain
  closed = false;
  while (unit >= 0) {
    const auto [place, is_new] = seen.emplace(unit, chain.size());
    if (!is_new) {
      closed = true;
      chain.erase(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(place->second));
      break;
    }
    chain.push_back(replay.why(unit));
    unit = chain.back().on < 0 ? -1 : graph.unit_of[chain.back().on];
  }
  return chain;
}

}  // namespace

void check_deadlock(const Graph& graph, FaultList& faults) {
  Replay replay(graph);
  replay.run();
  if (replay.done()) return;
  bool closed = false;
  const auto chain = chain_from(replay, graph, replay.first_stuck(), closed);
  const auto& first = chain.front();
  faults.add(fault::deadlock, graph.rank_of(first.step), graph.local(first.step), [&] {
    constexpr std::size_t k_most = 12;
    std::string text = closed ? fmt::format("a cycle of {} waits:", chain.size())
                              : std::string("a chain of waits without an end:");
    for (std::size_t i = 0; i < std::min(chain.size(), k_most); ++i) {
      text += fmt::format("\n  {} {}", describe(graph, chain[i].step), chain[i].reason);
      if (chain[i].on >= 0) text += ": " + describe(graph, chain[i].on);
    }
    if (chain.size() > k_most) text += fmt::format("\n  ... {} more", chain.size() - k_most);
    return text;
  });
}

}  // namespace tessera::plan

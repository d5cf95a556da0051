// SPDX-License-Identifier: Apache-2.0
// Rules of messages and collectives: every send has its receive with the same payload and content,
// and both sides issue them in one order, since NCCL matches messages of a pair by order alone.
#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "plan/check_rules.hpp"

namespace tessera::plan {

namespace {

void check_payload(const Graph& graph, std::int32_t global, FaultList& faults) {
  const Step& step = graph.step(global);
  const Plan& plan = graph.program->plans[graph.rank_of(global)];
  std::int64_t used = 0;
  for (const Use& use : plan.uses(step)) used += bytes_of(plan, use);
  if (step.comm.bytes == used && used > 0) return;
  faults.add(fault::size_mismatch, graph.rank_of(global), graph.local(global), [&] {
    return fmt::format("{} says {} bytes, its buffer ranges hold {}", describe(graph, global),
                       step.comm.bytes, used);
  });
}

void check_partner(const Graph& graph, std::int32_t global, FaultList& faults) {
  const Step& step = graph.step(global);
  const bool is_send = step.kind == StepKind::send;
  const int rank = graph.rank_of(global), local = graph.local(global);
  const std::int32_t other = graph.partner[global];
  const std::string& axis = graph.program->axes[step.comm.axis].name;
  if (other < 0) {
    faults.add(is_send ? fault::dropped_receive : fault::dropped_send, rank, local, [&] {
      return fmt::format("unmatched {}: {}, key {} on axis '{}', but rank {} never {} it",
                         is_send ? "send" : "receive", describe(graph, global), step.comm.key, axis,
                         step.comm.peer, is_send ? "receives" : "sends");
    });
    return;
  }
  if (!is_send) return;  // each pair is compared once
  const Step& peer = graph.step(other);
  if (peer.comm.bytes != step.comm.bytes) {
    faults.add(fault::size_mismatch, rank, local, [&] {
      return fmt::format("{} sends {} bytes, {} receives {}", describe(graph, global),
                         step.comm.bytes, describe(graph, other), peer.comm.bytes);
    });
  }
  if (peer.index != step.index) {
    faults.add(fault::content_mismatch, rank, local, [&] {
      return fmt::format("{} meets {} by key {} on axis '{}', but they name different content",
                         describe(graph, global), describe(graph, other), step.comm.key, axis);
    });
  }
}

/// Receives of one rank, pair by pair and axis by axis: their sends must stand in the same order.
void check_pair_order(const Graph& graph, int rank, FaultList& faults) {
  struct Entry {
    std::int32_t source;
    std::int16_t axis;
    std::int32_t step;
    bool operator<(const Entry& o) const {
      return std::tie(source, axis, step) < std::tie(o.source, o.axis, o.step);
    }
  };
  std::vector<Entry> receives;
  for (std::int32_t g = graph.step_base[rank]; g < graph.step_base[rank + 1]; ++g) {
    const Step& step = graph.program->plans[rank].steps[g - graph.step_base[rank]];
    if (step.kind != StepKind::recv || graph.partner[g] < 0) continue;
    receives.push_back({step.comm.peer, step.comm.axis, g});
  }
  std::sort(receives.begin(), receives.end());
  for (std::size_t i = 1; i < receives.size(); ++i) {
    const Entry& a = receives[i - 1];
    const Entry& b = receives[i];
    if (a.source != b.source || a.axis != b.axis) continue;
    const std::int32_t first = graph.partner[a.step], second = graph.partner[b.step];
    if (first < second) continue;
    faults.add(fault::swapped_messages, a.source, graph.local(second), [&] {
      return fmt::format(
          "{} is sent before {}, but rank {} receives them the other way round "
          "(steps {} and {}) on axis '{}'",
          describe(graph, second), describe(graph, first), rank, graph.local(b.step),
          graph.local(a.step), graph.program->axes[a.axis].name);
    });
  }
}

void check_meeting(const Graph& graph, const Meeting& meeting, FaultList& faults) {
  const std::int32_t first = meeting.members.front();
  const std::string& axis = graph.program->axes[meeting.axis].name;
  const int rank = graph.rank_of(first), local = graph.local(first);
  if (static_cast<int>(meeting.members.size()) != meeting.expected) {
    faults.add(fault::collective_order, rank, local, [&] {
      return fmt::format("{}: {} of {} members of its group on axis '{}' run this all_reduce",
                         describe(graph, first), meeting.members.size(), meeting.expected, axis);
    });
  }
  const Step& one = graph.step(first);
  for (const std::int32_t member : meeting.members) {
    const Step& other = graph.step(member);
    const bool same_call = std::tie(other.comm.key, other.label, other.index) ==
                           std::tie(one.comm.key, one.label, one.index);
    if (!same_call || other.comm.bytes != one.comm.bytes) {
      faults.add(same_call ? fault::size_mismatch : fault::collective_order, graph.rank_of(member),
                 graph.local(member), [&] {
                   return fmt::format(
                       "on axis '{}' {} (key {}, {} bytes) meets {} (key {}, {} "
                       "bytes)",
                       axis, describe(graph, member), other.comm.key, other.comm.bytes,
                       describe(graph, first), one.comm.key, one.comm.bytes);
                 });
    }
  }
}

}  // namespace

void check_messages(const Graph& graph, FaultList& faults) {
  for (std::size_t r = 0; r < graph.program->plans.size(); ++r) {
    std::int32_t global = graph.step_base[r];
    for (const Step& step : graph.program->plans[r].steps) {
      if (is_comm(step.kind)) check_payload(graph, global, faults);
      if (step.kind == StepKind::send || step.kind == StepKind::recv) {
        check_partner(graph, global, faults);
      }
      ++global;
    }
    check_pair_order(graph, static_cast<int>(r), faults);
  }
}

void check_collectives(const Graph& graph, FaultList& faults) {
  for (const Meeting& meeting : graph.meetings) check_meeting(graph, meeting, faults);
}

}  // namespace tessera::plan

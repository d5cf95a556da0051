// SPDX-License-Identifier: Apache-2.0
// The formulas of the machine model. Nothing is free: what has no rate or no size is an error.
#include "plan/cost.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.hpp"

namespace tessera::plan {

Cost::Cost(const Graph& graph, const Machine& machine) : graph_(graph), machine_(machine) {
  if (machine.ranks_per_node < 1) {
    throw Error(Exit::usage, fmt::format("machine '{}': ranks_per_node is {}", machine.name,
                                         machine.ranks_per_node));
  }
  if (machine.overlap < 0 || machine.overlap > 1) {
    throw Error(Exit::usage, fmt::format("machine '{}': overlap is {}, not in [0, 1]", machine.name,
                                         machine.overlap));
  }
  const int num_ranks = static_cast<int>(graph.program->plans.size());
  for (int r = 0; r < num_ranks; ++r) {
    const int first = r / machine.ranks_per_node * machine.ranks_per_node;
    const int on_node = std::min(machine.ranks_per_node, num_ranks - first);
    const int cores = machine.cores_per_node;
    share_.push_back(cores > 0 && on_node > cores ? double(on_node) / cores : 1.0);
  }
}

const Rate* Cost::rate(std::string_view op, DType dtype) const {
  for (const Rate& rate : machine_.rates) {
    if (rate.dtype == dtype && rate.op == op) return &rate;
  }
  return nullptr;
}

double Cost::compute(int rank, const Step& step) const {
  const Plan& plan = graph_.program->plans[rank];
  const auto uses = plan.uses(step);
  const DType dtype = uses.empty() ? DType::f32 : plan.buffers[uses[0].buffer].dtype;
  const Rate* found = rate(step.work.op, dtype);
  double seconds = machine_.step_overhead_s + (found ? found->overhead_s : 0);
  if (step.work.flops > 0) {
    if (!found || found->flops_s <= 0) {
      throw Error(Exit::usage,
                  fmt::format("machine '{}' has no rate of operator '{}' in {}", machine_.name,
                              step.work.op, name_of(dtype)),
                  "add the rate to the machine file; tessera-comm measures it");
    }
    seconds += step.work.flops / found->flops_s;
  } else if (step.work.bytes > 0) {
    if (machine_.memory_b_s <= 0) {
      throw Error(Exit::usage,
                  fmt::format("machine '{}' has no memory bandwidth, which operator '{}' needs",
                              machine_.name, step.work.op));
    }
    seconds += step.work.bytes / machine_.memory_b_s;
  }
  return seconds * share_[rank];
}

const Tier& Cost::tier(bool same_node) const { return same_node ? machine_.intra : machine_.inter; }

double Cost::bandwidth(const Tier& tier) const {
  if (tier.bandwidth_b_s > 0) return tier.bandwidth_b_s;
  throw Error(Exit::usage, fmt::format("machine '{}' has no bandwidth {}", machine_.name,
                                       &tier == &machine_.intra ? "inside a node (intra)"
                                                                : "between nodes (inter)"));
}

void Cost::require_payload(int rank, const Step& step) const {
  if (step.comm.bytes > 0) return;
  throw Error(Exit::invalid, fmt::format("rank {} '{}' moves {} bytes: a message has a size", rank,
                                         step.label, step.comm.bytes));
}

double Cost::message(int rank, const Step& step) const {
  require_payload(rank, step);
  const Tier& way = tier(same_node(rank, step.comm.peer));
  return way.latency_s + static_cast<double>(step.comm.bytes) / bandwidth(way);
}

double Cost::all_reduce(const Meeting& meeting) const {
  const auto& group = graph_.program->axes[meeting.axis].groups[meeting.group];
  const std::int32_t first = meeting.members.front();
  require_payload(graph_.rank_of(first), graph_.step(first));
  const double n = static_cast<double>(group.size());
  if (group.size() == 1) return 0;
  const Tier& way = tier(std::all_of(group.begin(), group.end(),
                                     [&](int rank) { return same_node(rank, group.front()); }));
  const double bytes = static_cast<double>(graph_.step(first).comm.bytes);
  return 2 * (n - 1) * way.latency_s + 2 * (n - 1) / n * bytes / bandwidth(way);
}

}  // namespace tessera::plan

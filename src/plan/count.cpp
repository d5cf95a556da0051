// SPDX-License-Identifier: Apache-2.0
// One pass over the steps of every rank.
#include "plan/count.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.hpp"
#include "plan/graph.hpp"

namespace tessera::plan {

namespace {

/// Per axis and group: do its ranks share one node?
std::vector<std::vector<bool>> groups_inside_node(const Program& program, int ranks_per_node) {
  std::vector<std::vector<bool>> inside;
  for (const Axis& axis : program.axes) {
    auto& row = inside.emplace_back();
    for (const auto& group : axis.groups) {
      row.push_back(std::all_of(group.begin(), group.end(), [&](std::int32_t rank) {
        return rank / ranks_per_node == group.front() / ranks_per_node;
      }));
    }
  }
  return inside;
}

std::int64_t counted_elements(const Plan& plan, const Step& step) {
  std::int64_t elements = 0;
  for (const Use& use : plan.uses(step)) {
    const Buffer& buffer = plan.buffers[use.buffer];
    if (!buffer.statistic) elements += use.d0.size() * use.d1.size() * buffer.shape[2];
  }
  return elements;
}

/// Sends, and sums over more than one rank; a group of one rank moves nothing.
bool leaves_rank(const Program& program, const Step& step,
                 const std::vector<std::vector<std::int32_t>>& group_of, std::size_t rank) {
  if (step.kind != StepKind::all_reduce) return step.kind == StepKind::send;
  const Axis& axis = program.axes[step.comm.axis];
  return axis.groups[group_of[step.comm.axis][rank]].size() > 1;
}

}  // namespace

std::vector<RankCount> count(const Program& program, int ranks_per_node) {
  if (ranks_per_node < 1) {
    throw Error(Exit::usage, fmt::format("ranks per node is {}", ranks_per_node),
                "give a positive number");
  }
  const auto inside = groups_inside_node(program, ranks_per_node);
  std::vector<std::vector<std::int32_t>> group_of;
  for (const Axis& axis : program.axes) {
    group_of.push_back(group_of_rank(axis, program.plans.size()));
  }
  std::vector<RankCount> result(program.plans.size());
  for (std::size_t r = 0; r < program.plans.size(); ++r) {
    const Plan& plan = program.plans[r];
    RankCount& mine = result[r];
    mine.by_axis.resize(program.axes.size());
    const int node = static_cast<int>(r) / ranks_per_node;
    for (const Buffer& buffer : plan.buffers) {
      mine.peak_bytes += buffer.bytes();
      if (buffer.role == Role::scratch) mine.scratch_bytes += buffer.bytes();
    }
    for (const Step& step : plan.steps) {
      ++mine.steps_by_label[step.label];
      mine.flops += step.work.flops;
      if (!leaves_rank(program, step, group_of, r)) continue;
      const std::int64_t elements = counted_elements(plan, step);
      AxisCount& axis = mine.by_axis[step.comm.axis];
      axis.bytes += step.comm.bytes;
      axis.elements += elements;
      ++axis.messages;
      mine.bytes_sent += step.comm.bytes;
      mine.elements_sent += elements;
      ++mine.messages;
      const bool intra = step.kind == StepKind::send
                             ? step.comm.peer / ranks_per_node == node
                             : inside[step.comm.axis][group_of[step.comm.axis][r]];
      (intra ? mine.intra_bytes : mine.inter_bytes) += step.comm.bytes;
    }
  }
  return result;
}

}  // namespace tessera::plan

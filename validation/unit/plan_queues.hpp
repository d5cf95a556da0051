// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "exec/prepared.hpp"
#include "plan/graph.hpp"

namespace tessera::test {

/// The units of a rank's queues as the executor sees them.
inline std::vector<exec::QueueSteps> queues_of(const plan::Graph& graph, std::size_t rank) {
  const plan::Plan& plan = graph.program->plans[rank];
  std::vector<exec::QueueSteps> out;
  for (std::size_t q = 0; q < plan.queues.size(); ++q)
    out.push_back({static_cast<int>(q), plan.queues[q].kind == plan::QueueKind::comm, {}, {}});
  for (std::int32_t u = graph.unit_base[rank]; u < graph.unit_base[rank + 1]; ++u) {
    exec::QueueSteps& q = out[static_cast<std::size_t>(graph.units[u].queue)];
    const std::size_t begin = q.steps.size();
    for (const std::int32_t s : graph.members_of(graph.units[u])) q.steps.push_back(graph.local(s));
    q.units.push_back({begin, q.steps.size()});
  }
  return out;
}

}  // namespace tessera::test

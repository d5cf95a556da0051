// SPDX-License-Identifier: Apache-2.0
// Durations of steps on a machine model. Private to the plan room.
#pragma once

#include <string_view>
#include <vector>

#include "plan/graph.hpp"
#include "plan/machine.hpp"

namespace tessera::plan {

class Cost {
 public:
  Cost(const Graph& graph, const Machine& machine);
  /// Seconds of a compute or copy step that has the rank for itself.
  double compute(int rank, const Step& step) const;
  /// Seconds of the message that `step` sends, or receives.
  double message(int rank, const Step& step) const;
  double all_reduce(const Meeting& meeting) const;

 private:
  const Tier& tier(bool same_node) const;
  const Rate* rate(std::string_view op, DType dtype) const;
  double bandwidth(const Tier& tier) const;
  void require_payload(int rank, const Step& step) const;
  bool same_node(int a, int b) const {
    return a / machine_.ranks_per_node == b / machine_.ranks_per_node;
  }

  const Graph& graph_;
  const Machine& machine_;
  std::vector<double> share_;  // per rank: ranks on its node / cores, at least 1
};

}  // namespace tessera::plan

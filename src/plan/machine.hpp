// SPDX-License-Identifier: Apache-2.0
// The machine model that simulation runs on: compute rates per operator, latency and bandwidth per
// tier. Plain numbers; `tessera-comm` measures them, `inputs/machines/*.toml` holds them.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace tessera::plan {

/// One class of links. Time of a message = latency + bytes / bandwidth.
struct Tier {
  double latency_s = 0;
  double bandwidth_b_s = 0;
};

/// Rate of one operator: time = overhead + flops / flops_s (or bytes / memory bandwidth).
struct Rate {
  std::string op;
  DType dtype = DType::f32;
  double overhead_s = 0;
  double flops_s = 0;
};

struct Machine {
  std::string name;
  int ranks_per_node = 1;      ///< ranks r and s share a node when r / ranks_per_node is equal
  int cores_per_node = 0;      ///< host ranks only: more ranks than cores share them; 0 = no limit
  Tier intra;                  ///< between ranks of one node
  Tier inter;                  ///< between nodes
  double overlap = 1;          ///< part of a transfer that runs beside compute; the rest steals it
  double memory_b_s = 0;       ///< copies, merges and other bandwidth-bound operators
  double step_overhead_s = 0;  ///< executor or launch cost of any compute step
  std::vector<Rate> rates;
};

}  // namespace tessera::plan

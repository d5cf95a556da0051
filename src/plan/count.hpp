// SPDX-License-Identifier: Apache-2.0
// What a program costs, by adding up its steps: bytes and messages per axis and tier, operations,
// memory. Compared with the closed forms and with the bytes that a run counts.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "plan/plan.hpp"

namespace tessera::plan {

/// What one rank sends on one axis. An all_reduce counts its payload once, as Communicator does,
/// and nothing in a group of one rank.
struct AxisCount {
  std::int64_t bytes = 0;
  std::int64_t messages = 0;
  std::int64_t elements = 0;  ///< without statistic buffers (LSE, Delta): the volume in units of U
};

struct RankCount {
  std::vector<AxisCount> by_axis;  ///< as Program::axes
  std::int64_t bytes_sent = 0;     ///< over all axes
  std::int64_t intra_bytes = 0;    ///< of them inside a node
  std::int64_t inter_bytes = 0;    ///< of them between nodes
  std::int64_t messages = 0;
  std::int64_t elements_sent = 0;
  double flops = 0;
  std::map<std::string_view, std::int64_t> steps_by_label;
  std::int64_t scratch_bytes = 0;  ///< of the buffer table
  std::int64_t peak_bytes = 0;     ///< scratch and bound buffers; all live at once
};

/// One entry per rank. Ranks r and s share a node when r / ranks_per_node is equal; an all_reduce
/// is between nodes when its group spans some. Precondition: check() found no bad reference.
std::vector<RankCount> count(const Program& program, int ranks_per_node);

}  // namespace tessera::plan

// SPDX-License-Identifier: Apache-2.0
// The execution order of a whole program as one flat graph: units of comm steps, who waits for whom
// inside a rank, and which steps of different ranks meet. The deadlock replay and the simulator
// walk it; the checker reads the matching from it. Steps and units are numbered over all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.hpp"

namespace tessera::plan {

/// One compute step, or neighbouring comm steps of a queue that start together.
struct Unit {
  std::int32_t rank = -1;
  std::int32_t first_member = 0, num_members = 0;  ///< into Graph::members
  std::int32_t previous = -1, next = -1;           ///< in the queue, -1: none
  std::int32_t position = 0;                       ///< in the queue
  std::int8_t queue = 0;
};

/// The k-th all_reduce of every member of one axis group.
struct Meeting {
  std::int32_t axis = -1, group = -1;
  std::int32_t expected = 0;          ///< size of the group
  std::vector<std::int32_t> members;  ///< global steps
};

/// Global step = step_base[rank] + step of that rank; units likewise.
struct Graph {
  const Program* program = nullptr;
  std::vector<std::int32_t> step_base, unit_base;  ///< one more than ranks
  std::vector<Unit> units;
  std::vector<std::int32_t> members;     ///< steps in the order of their units
  std::vector<std::int32_t> unit_of;     ///< per step
  std::vector<std::int32_t> partner;     ///< per step: the other side of a send or recv, -1
  std::vector<std::int32_t> meeting_of;  ///< per step: index of its Meeting, -1
  std::vector<Meeting> meetings;
  std::vector<std::uint32_t> first_follower;  ///< per step, one more than steps
  std::vector<std::int32_t> followers;        ///< units that wait for the step

  int rank_of(std::int32_t step) const { return units[unit_of[step]].rank; }
  int local(std::int32_t step) const { return step - step_base[rank_of(step)]; }
  const Step& step(std::int32_t global) const {
    return program->plans[rank_of(global)].steps[local(global)];
  }
  std::span<const std::int32_t> members_of(const Unit& unit) const {
    return {members.data() + unit.first_member, static_cast<std::size_t>(unit.num_members)};
  }
  std::span<const std::int32_t> followers_of(std::int32_t step) const {
    return {followers.data() + first_follower[step],
            first_follower[step + 1] - first_follower[step]};
  }
};

/// Index of the group of `axis` that holds each rank, -1: none.
std::vector<std::int32_t> group_of_rank(const Axis& axis, std::size_t num_ranks);

/// Builds the graph of a program whose references are valid (check() proves that first); it keeps a
/// pointer to the program. Sends and receives match when (source, destination, axis, key) do, the
/// k-th with the k-th of an equal key. Cost n log n in steps.
Graph make_graph(const Program& program);

/// What is complete so far, and which units may start.
class Progress {
 public:
  explicit Progress(const Graph& graph);
  /// Units that may start, oldest first; the caller takes them away.
  std::vector<std::int32_t> startable;
  void complete(std::int32_t step);
  bool is_complete(std::int32_t step) const { return complete_[step]; }
  bool is_startable(std::int32_t unit) const { return waits_[unit] == 0; }
  bool is_finished(std::int32_t unit) const { return left_[unit] == 0; }
  std::int64_t num_complete() const { return num_complete_; }

 private:
  void release(std::int32_t unit);

  const Graph& graph_;
  std::vector<std::int32_t> waits_, left_;  // per unit: predecessors, own members not complete
  std::vector<bool> complete_;              // per step
  std::int64_t num_complete_ = 0;
};

}  // namespace tessera::plan

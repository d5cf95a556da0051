// SPDX-License-Identifier: Apache-2.0
// The rules of check(), one function per file, and what they share. Private to the plan room.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "plan/check.hpp"
#include "plan/graph.hpp"

namespace tessera::plan {

/// "rank 2 step 7 'attn.fwd.tile' (tile 3, 5)".
std::string describe(const Program& program, int rank, int step);
std::string describe(const Graph& graph, std::int32_t global_step);
/// "tile 3, 5", "chunk 4" or "".
std::string describe(const Index& index);

/// Collects faults; a message is only formatted while its name has room.
class FaultList {
 public:
  template <class MakeMessage>
  void add(std::string_view name, int rank, int step, MakeMessage&& message) {
    if (++counts_[name] <= k_max_per_name) faults_.push_back({name, rank, step, message()});
  }
  bool empty() const { return faults_.empty(); }
  std::vector<Fault> take() { return std::move(faults_); }

 private:
  static constexpr int k_max_per_name = 100;
  std::map<std::string_view, int> counts_;
  std::vector<Fault> faults_;
};

void check_references(const Program& program, FaultList& faults);
void check_messages(const Graph& graph, FaultList& faults);
void check_collectives(const Graph& graph, FaultList& faults);
void check_deadlock(const Graph& graph, FaultList& faults);
void check_order(const Graph& graph, FaultList& faults);
void check_coverage(const Program& program, FaultList& faults);

}  // namespace tessera::plan

// SPDX-License-Identifier: Apache-2.0
// Runs the rules one after another, and the words that their messages share.
#include "plan/check.hpp"

#include <fmt/format.h>

#include "plan/check_rules.hpp"

namespace tessera::plan {

std::string describe(const Index& index) {
  switch (index.kind) {
    case Index::Kind::tile:
      return fmt::format("tile {}, {}", index.i, index.j);
    case Index::Kind::chunk:
      return fmt::format("chunk {}", index.i);
    case Index::Kind::none:
      break;
  }
  return {};
}

std::string describe(const Program& program, int rank, int step) {
  const Step& s = program.plans[rank].steps[step];
  const std::string index = describe(s.index);
  return fmt::format("rank {} step {} '{}'{}", rank, step, s.label,
                     index.empty() ? "" : " (" + index + ")");
}

std::string describe(const Graph& graph, std::int32_t global_step) {
  return describe(*graph.program, graph.rank_of(global_step), graph.local(global_step));
}

std::vector<Fault> check(const Program& program) {
  FaultList faults;
  check_references(program, faults);
  if (!faults.empty()) return faults.take();
  const Graph graph = make_graph(program);
  check_messages(graph, faults);
  check_collectives(graph, faults);
  check_deadlock(graph, faults);
  check_order(graph, faults);
  check_coverage(program, faults);
  return faults.take();
}

}  // namespace tessera::plan

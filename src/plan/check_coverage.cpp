// SPDX-License-Identifier: Apache-2.0
// Rules of coverage: every work item of the program is done exactly once over all ranks, and no
// step with a covered label does anything else.
#include <algorithm>

#include <fmt/format.h>

#include "plan/check_rules.hpp"

namespace tessera::plan {

namespace {

struct Done {
  std::int32_t rank = -1, step = -1;  ///< -1: not done so far
};

std::string name_of(const WorkItem& item) {
  const std::string index = describe(item.index);
  return fmt::format("'{}'{}", item.label, index.empty() ? "" : " (" + index + ")");
}

}  // namespace

void check_coverage(const Program& program, FaultList& faults) {
  std::vector<WorkItem> items = program.coverage;
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  std::vector<std::string_view> labels;
  for (const WorkItem& item : items) {
    if (labels.empty() || labels.back() != item.label) labels.push_back(item.label);
  }
  std::vector<Done> done(items.size());
  for (std::size_t r = 0; r < program.plans.size(); ++r) {
    const int rank = static_cast<int>(r);
    for (std::size_t s = 0; s < program.plans[r].steps.size(); ++s) {
      const Step& step = program.plans[r].steps[s];
      if (std::find(labels.begin(), labels.end(), step.label) == labels.end()) continue;
      const int number = static_cast<int>(s);
      const WorkItem item{step.label, step.index};
      const auto found = std::lower_bound(items.begin(), items.end(), item);
      if (found == items.end() || *found != item) {
        faults.add(fault::unexpected_work, rank, number, [&] {
          return fmt::format("{} is no work item of the program", describe(program, rank, number));
        });
        continue;
      }
      Done& first = done[found - items.begin()];
      if (first.rank >= 0) {
        faults.add(fault::duplicated_work, rank, number, [&] {
          return fmt::format("{} was done before by {}", describe(program, rank, number),
                             describe(program, first.rank, first.step));
        });
      } else {
        first = {rank, number};
      }
    }
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (done[i].rank >= 0) continue;
    faults.add(fault::missing_work, -1, -1,
               [&] { return fmt::format("nobody does {}", name_of(items[i])); });
  }
}

}  // namespace tessera::plan

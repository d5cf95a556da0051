// SPDX-License-Identifier: Apache-2.0
// Step by step: the slowest rank and the slowest of the others.
#include "trace/straggler.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.hpp"

namespace tessera::trace {

namespace {

constexpr double k_least_saving = 0.05;  // below that, noise decides who is slowest

void require_table(const std::vector<std::vector<double>>& table) {
  for (const auto& row : table) {
    if (row.size() == table.front().size() && !row.empty()) continue;
    throw Error(Exit::usage, fmt::format("times of {} ranks in one step and of {} in another",
                                         table.front().size(), row.size()));
  }
}

}  // namespace

StragglerReport find_straggler(const std::vector<std::vector<double>>& compute_s) {
  StragglerReport report;
  if (compute_s.empty()) return report;
  require_table(compute_s);
  const std::size_t num_ranks = compute_s.front().size();
  report.waits_s.assign(num_ranks, 0);
  std::vector<double> saving(num_ranks, 0);
  std::vector<int> times_slowest(num_ranks, 0);
  double total = 0;
  for (const auto& step : compute_s) {
    const auto slowest = std::max_element(step.begin(), step.end());
    const auto who = static_cast<std::size_t>(slowest - step.begin());
    double second = num_ranks > 1 ? 0 : *slowest;
    for (std::size_t r = 0; r < num_ranks; ++r) {
      report.waits_s[r] += *slowest - step[r];
      if (r != who) second = std::max(second, step[r]);
    }
    total += *slowest;
    saving[who] += *slowest - second;
    ++times_slowest[who];
  }
  const auto candidate =
      static_cast<std::size_t>(std::max_element(saving.begin(), saving.end()) - saving.begin());
  const double num_steps = static_cast<double>(compute_s.size());
  report.slowest_share = times_slowest[candidate] / num_steps;
  report.step_s = total / num_steps;
  report.step_without_s = (total - saving[candidate]) / num_steps;
  if (report.step_without_s > 0) report.ratio = report.step_s / report.step_without_s;
  const bool clear = report.slowest_share > 0.5 && saving[candidate] >= k_least_saving * total;
  if (clear && saving[candidate] > 0) report.rank = static_cast<int>(candidate);
  return report;
}

}  // namespace tessera::trace

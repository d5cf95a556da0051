// SPDX-License-Identifier: Apache-2.0
// Ways to damage a plan, for tests of the checker.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "plan/check.hpp"
#include "plan/plan.hpp"

namespace tessera::plan::testing {

/// Takes a step out; waits for it disappear, numbers above it move down.
inline void erase_step(Plan& plan, int gone) {
  std::vector<std::int32_t> pool;
  for (Step& step : plan.steps) {
    const auto first = static_cast<std::uint32_t>(pool.size());
    for (const std::int32_t dep : plan.after(step)) {
      if (dep != gone) pool.push_back(dep > gone ? dep - 1 : dep);
    }
    step.first_after = first;
    step.num_after = static_cast<std::uint32_t>(pool.size()) - first;
  }
  plan.after_pool = pool;
  plan.steps.erase(plan.steps.begin() + gone);
}

/// Exchanges what two steps do; each keeps its place, group and waits.
inline void exchange(Step& a, Step& b) {
  std::swap(a.label, b.label);
  std::swap(a.index, b.index);
  std::swap(a.comm, b.comm);
  std::swap(a.first_use, b.first_use);
  std::swap(a.num_use, b.num_use);
}

/// The name that the conflict of two steps gets: the first that a wait protected.
inline std::string_view conflict(const Plan& plan, int before, int after) {
  for (const Use& b : plan.uses(plan.steps[after])) {
    for (const Use& a : plan.uses(plan.steps[before])) {
      if (a.buffer != b.buffer || !a.d0.overlaps(b.d0) || !a.d1.overlaps(b.d1)) continue;
      if (a.access != Access::read && b.access != Access::write) return fault::missing_wait;
      if (a.access == Access::read && b.access != Access::read) return fault::reused_early;
      if (a.access != Access::read) return fault::unordered_writes;
    }
  }
  return "no conflict";
}

}  // namespace tessera::plan::testing

// SPDX-License-Identifier: Apache-2.0
// Plans clear a buffer, sum into it and then copy the sums, rounded, to where they go. Where the
// chosen operators can write instead of sum, and round what they write, clearing and copy are left
// out; the plan itself stays as it was checked and counted.
#include <map>

#include "exec/prepared.hpp"
#include "exec/stores.hpp"

namespace tessera::exec {

namespace {

bool clears(const plan::Step& s) {
  return s.kind == plan::StepKind::compute &&
         (s.work.op == "tensor.zero" || s.work.op == "attention.reset");
}

bool same_part(const plan::Use& a, const plan::Use& b) {
  return a.buffer == b.buffer && a.d0 == b.d0 && a.d1 == b.d1;
}

/// The last step before `before` that touches the buffer of the use, if all it does with it is to
/// clear just this part; -1 otherwise.
std::int32_t cleared_by(const plan::Plan& plan, const plan::Use& use, std::int32_t before) {
  for (std::int32_t i = before - 1; i >= 0; --i) {
    const plan::Step& s = plan.steps[static_cast<std::size_t>(i)];
    for (const plan::Use& u : plan.uses(s))
      if (u.buffer == use.buffer) return clears(s) && same_part(u, use) ? i : -1;
  }
  return -1;
}

}  // namespace

void Executor::Prepared::fuse() {
  fuse_clearings();
  fuse_stores();
}

void Executor::Prepared::fuse_stores() {
  const auto able = [this](std::int32_t last, const plan::Use& to) {
    const auto at = static_cast<std::size_t>(last);
    return chosen[at]->stores && chosen[at]->stores(calls[at], tensor(to));
  };
  for (const Store& s : stores_of(plan, able)) {
    calls[static_cast<std::size_t>(s.last)].attributes.store = tensor(s.to);
    for (const auto& [argument, use] : s.arguments)
      calls[static_cast<std::size_t>(s.copy)].args[argument] = tensor(use);
  }
}

void Executor::Prepared::fuse_clearings() {
  skipped.assign(plan.steps.size(), 0);
  for (std::int32_t j = 0; j < std::ssize(plan.steps); ++j) {
    const auto at = static_cast<std::size_t>(j);
    if (!chosen[at] || !chosen[at]->overwrites) continue;
    std::map<std::int32_t, std::vector<std::size_t>> arguments;  // by clearing step
    const auto uses = plan.uses(step(j));
    for (std::size_t k = 0; k < uses.size(); ++k) {
      if (uses[k].access != plan::Access::update) continue;
      const std::int32_t by = cleared_by(plan, uses[k], j);
      if (by >= 0 && step(by).queue == step(j).queue && chosen[at]->overwrites(calls[at], k))
        arguments[by].push_back(k);
    }
    for (const auto& [by, list] : arguments) {
      // A step that clears more than this one writes has to run.
      if (list.size() != plan.uses(step(by)).size()) continue;
      skipped[static_cast<std::size_t>(by)] = 1;
      for (const std::size_t k : list) calls[at].attributes.fresh |= std::uint32_t{1} << k;
    }
  }
}

}  // namespace tessera::exec

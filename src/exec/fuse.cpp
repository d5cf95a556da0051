// SPDX-License-Identifier: Apache-2.0
// Plans clear a buffer, sum into it and then copy the sums, rounded, to where they go. Where the
// chosen operators can write instead of sum, and round what they write, clearing and copy are left
// out; the plan itself stays as it was checked and counted.
#include <algorithm>
#include <map>

#include "exec/prepared.hpp"

namespace tessera::exec {

namespace {

bool clears(const plan::Step& s) {
  return s.kind == plan::StepKind::compute &&
         (s.work.op == "tensor.zero" || s.work.op == "attention.reset");
}

bool same_part(const plan::Use& a, const plan::Use& b) {
  return a.buffer == b.buffer && a.d0.begin == b.d0.begin && a.d0.end == b.d0.end &&
         a.d1.begin == b.d1.begin && a.d1.end == b.d1.end;
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

/// `part` is all of the rows of `whole`, or the first or the last of them.
bool at_an_end(const plan::Use& part, const plan::Use& whole) {
  return part.d1.begin == whole.d1.begin && part.d1.end == whole.d1.end &&
         part.d0.begin >= whole.d0.begin && part.d0.end <= whole.d0.end &&
         (part.d0.begin == whole.d0.begin || part.d0.end == whole.d0.end);
}

bool overlap(const plan::Use& a, const plan::Use& b) {
  return a.buffer == b.buffer && a.d0.overlaps(b.d0) && a.d1.overlaps(b.d1);
}

bool within(const plan::Use& a, const plan::Use& b) {
  return a.buffer == b.buffer && a.d0.begin >= b.d0.begin && a.d0.end <= b.d0.end &&
         a.d1.begin >= b.d1.begin && a.d1.end <= b.d1.end;
}

/// A step in [first, last) touches memory of the use; which, or -1: the last one.
std::int32_t last_toucher(const plan::Plan& plan, const plan::Use& use, std::int32_t first,
                          std::int32_t last) {
  for (std::int32_t i = last - 1; i >= first; --i)
    for (const plan::Use& u : plan.uses(plan.steps[static_cast<std::size_t>(i)]))
      if (overlap(u, use)) return i;
  return -1;
}

Range moved(Range range, std::int64_t by) { return {range.begin + by, range.end + by}; }

}  // namespace

void Executor::Prepared::fuse() {
  fuse_clearings();
  fuse_stores();
}

void Executor::Prepared::fuse_stores() {
  for (std::int32_t c = 0; c < std::ssize(plan.steps); ++c) {
    if (!chosen[static_cast<std::size_t>(c)] || step(c).work.op != "tensor.copy") continue;
    for (std::size_t pair = 0; pair + 1 < plan.uses(step(c)).size(); pair += 2) fuse_store(c, pair);
  }
}

void Executor::Prepared::fuse_store(std::int32_t copy, std::size_t pair) {
  const auto uses = plan.uses(step(copy));
  const plan::Use &from = uses[pair], &to = uses[pair + 1];
  std::vector<TensorRef>& args = calls[static_cast<std::size_t>(copy)].args;
  const auto end = static_cast<std::int32_t>(plan.steps.size());
  // Nothing else may touch them: not where they go, before the copy, and not the sums after it.
  if (plan.buffers[static_cast<std::size_t>(from.buffer)].role != plan::Role::scratch ||
      args[pair].shape[0] != from.d0.size() || last_toucher(plan, to, 0, copy) >= 0 ||
      last_toucher(plan, from, copy + 1, end) >= 0)
    return;
  const std::int32_t last = last_toucher(plan, from, 0, copy);
  if (last < 0 || step(last).queue != step(copy).queue) return;
  const auto at = static_cast<std::size_t>(last);
  const std::size_t partial = ops::partial_output(step(last).work.op);
  if (!chosen[at] || !chosen[at]->stores || partial == 0 || calls[at].attributes.store.data) return;
  const plan::Use sums = plan.uses(step(last))[partial];
  if (sums.buffer != from.buffer || !at_an_end(sums, from)) return;
  const auto others = [&](auto f) {
    for (std::size_t i = 0; i < uses.size(); i += 2)
      if (i != pair && overlap(uses[i], sums)) f(i);
  };
  bool whole = true;
  others([&](std::size_t i) { whole &= within(uses[i], sums); });
  const Range rows = moved(sums.d0, -from.d0.begin);
  const TensorRef store = args[pair + 1].slice(rows, {0, to.d1.size()});
  if (!whole || !chosen[at]->stores(calls[at], store)) return;
  calls[at].attributes.store = store;
  others([&](std::size_t i) {
    args[i] = store.slice(moved(uses[i].d0, -sums.d0.begin), moved(uses[i].d1, -sums.d1.begin));
  });
  const Range rest = rows.begin > 0 ? Range{0, rows.begin} : Range{rows.end, from.d0.size()};
  for (const std::size_t i : {pair, pair + 1}) args[i] = args[i].slice(rest, {0, args[i].shape[1]});
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

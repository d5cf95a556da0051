// SPDX-License-Identifier: Apache-2.0
#include "exec/stores.hpp"

#include <set>

#include "ops/call.hpp"

namespace tessera::exec {

namespace {

using plan::Use;

bool within(const Use& a, const Use& b) {
  return a.buffer == b.buffer && b.d0.covers(a.d0) && b.d1.covers(a.d1);
}

/// `part` is all of the rows of `whole`, or the first or the last of them.
bool at_an_end(const Use& part, const Use& whole) {
  return within(part, whole) && part.d1 == whole.d1 &&
         (part.d0.begin == whole.d0.begin || part.d0.end == whole.d0.end);
}

/// The last of the steps [first, end) that touches memory of the use; -1: none.
std::int32_t last_toucher(const plan::Plan& plan, const Use& use, std::int32_t first,
                          std::int32_t end) {
  for (std::int32_t i = end - 1; i >= first; --i)
    for (const Use& u : plan.uses(plan.steps[static_cast<std::size_t>(i)]))
      if (overlap(u, use)) return i;
  return -1;
}

Range moved(Range range, std::int64_t by) { return {range.begin + by, range.end + by}; }

/// The part of `to` that takes what `part` is of `from`.
Use part_of(const Use& to, const Use& from, const Use& part) {
  return {to.buffer, to.access, moved(part.d0, to.d0.begin - from.d0.begin),
          moved(part.d1, to.d1.begin - from.d1.begin)};
}

/// The rows of a pair, before or behind those that are stored, which are at one of its ends.
Use rest_of(const Use& use, const Use& stored) {
  Use out = use;
  out.d0 = stored.d0.begin > use.d0.begin ? Range{use.d0.begin, stored.d0.begin}
                                          : Range{stored.d0.end, use.d0.end};
  return out;
}

class Finder {
 public:
  Finder(const plan::Plan& plan, const std::function<bool(std::int32_t, const Use&)>& able)
      : plan_(plan), able_(able) {}

  std::vector<Store> run() {
    for (std::int32_t copy = 0; copy < size(); ++copy) {
      const plan::Step& s = step(copy);
      if (s.kind != plan::StepKind::compute || s.work.op != "tensor.copy") continue;
      for (std::size_t pair = 0; pair + 1 < plan_.uses(s).size(); pair += 2) look(copy, pair);
    }
    return std::move(out_);
  }

 private:
  std::int32_t size() const { return static_cast<std::int32_t>(plan_.steps.size()); }
  const plan::Step& step(std::int32_t i) const { return plan_.steps[static_cast<std::size_t>(i)]; }

  /// Nothing else may touch them: not where they go before the copy, not the sums after it.
  bool alone(std::int32_t copy, const Use& from, const Use& to) const {
    const plan::Buffer& sums = plan_.buffers[static_cast<std::size_t>(from.buffer)];
    return sums.role == plan::Role::scratch && last_toucher(plan_, to, 0, copy) < 0 &&
           last_toucher(plan_, from, copy + 1, size()) < 0;
  }

  void look(std::int32_t copy, std::size_t pair) {
    const auto uses = plan_.uses(step(copy));
    const Use &from = uses[pair], &to = uses[pair + 1];
    if (!alone(copy, from, to)) return;
    const std::int32_t last = last_toucher(plan_, from, 0, copy);
    // A pair that reads what another one of this copy has stored finds the step that stores it.
    if (last < 0 || step(last).queue != step(copy).queue || stored_.contains(last)) return;
    const std::size_t partial = ops::partial_output(step(last).work.op);
    if (partial == 0) return;
    const Use& sums = plan_.uses(step(last))[partial];
    if (!at_an_end(sums, from)) return;
    Store store{last, part_of(to, from, sums), copy, {}};
    for (std::size_t i = 0; i < uses.size(); i += 2) {
      if (i == pair || !overlap(uses[i], sums)) continue;
      if (!within(uses[i], sums)) return;
      Use other = part_of(store.to, sums, uses[i]);
      other.access = plan::Access::read;
      store.arguments.emplace_back(i, other);
    }
    if (!able_(last, store.to)) return;
    store.arguments.emplace_back(pair, rest_of(from, sums));
    store.arguments.emplace_back(pair + 1, rest_of(to, store.to));
    stored_.insert(last);
    out_.push_back(std::move(store));
  }

  const plan::Plan& plan_;
  const std::function<bool(std::int32_t, const Use&)>& able_;
  std::vector<Store> out_;
  std::set<std::int32_t> stored_;
};

}  // namespace

std::vector<Store> stores_of(const plan::Plan& plan,
                             const std::function<bool(std::int32_t, const Use&)>& able) {
  return Finder(plan, able).run();
}

}  // namespace tessera::exec

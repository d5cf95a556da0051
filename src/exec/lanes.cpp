// SPDX-License-Identifier: Apache-2.0
#include "exec/lanes.hpp"

#include <algorithm>

namespace tessera::exec {

namespace {

Range half_range(Range range, int half) {
  const std::int64_t middle = range.begin + range.size() / 2;
  return half == 0 ? Range{range.begin, middle} : Range{middle, range.end};
}

/// One half of step a and the other half of step b touch the same memory.
bool halves_conflict(const plan::Plan& plan, const plan::Step& a, const Cut& cut_a,
                     const plan::Step& b, const Cut& cut_b) {
  const auto uses_a = plan.uses(a), uses_b = plan.uses(b);
  for (std::size_t i = 0; i < uses_a.size(); ++i)
    for (std::size_t j = 0; j < uses_b.size(); ++j)
      for (const int half : {0, 1})
        if (plan::conflict(half_of(uses_a[i], cut_a[i], half),
                           half_of(uses_b[j], cut_b[j], 1 - half)))
          return true;
  return false;
}

}  // namespace

plan::Use half_of(const plan::Use& use, int dimension, int half) {
  plan::Use out = use;
  Range& range = dimension == 0 ? out.d0 : out.d1;
  range = half_range(range, half);
  return out;
}

ops::Call half_of(const ops::Call& call, const Cut& cut, int half, void* stream) {
  ops::Call out = call;
  out.stream = stream;
  const auto halve = [&](TensorRef& t, int dimension) {
    Range rows{0, t.shape[0]}, columns{0, t.shape[1]};
    Range& range = dimension == 0 ? rows : columns;
    range = half_range(range, half);
    t = t.slice(rows, columns);
  };
  for (std::size_t i = 0; i < out.args.size(); ++i) halve(out.args[i], cut[i]);
  TensorRef& store = out.attributes.store;
  if (store.data) halve(store, cut[ops::partial_output(call.name)]);
  return out;
}

std::vector<LaneStep> lanes_of(const plan::Plan& plan, std::span<const std::int32_t> steps,
                               std::span<const Cut> cuts, double long_from) {
  std::vector<LaneStep> out(steps.size());
  std::vector<std::size_t> apart;  // split since the lanes met
  bool behind = true;              // the first lane has work that the second has not waited for
  const auto step = [&](std::size_t i) -> const plan::Step& {
    return plan.steps[static_cast<std::size_t>(steps[i])];
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    LaneStep& lane = out[i];
    const auto meets = [&](std::size_t before) {
      return halves_conflict(plan, step(before), cuts[before], step(i), cuts[i]);
    };
    const bool meet = cuts[i].empty() || std::ranges::any_of(apart, meets);
    const bool is_long = step(i).work.flops >= long_from;
    lane.split = !cuts[i].empty() && (is_long || (!apart.empty() && !meet));
    lane.join = !apart.empty() && meet;
    if (lane.join) apart.clear(), behind = true;
    lane.fork = lane.split && behind;
    behind = !lane.split;
    if (lane.split) apart.push_back(i);
  }
  return out;
}

}  // namespace tessera::exec

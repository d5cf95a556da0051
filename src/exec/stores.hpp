// SPDX-License-Identifier: Apache-2.0
// Plans copy partial outputs, rounded, to where they go. The last operator to touch them can often
// round them itself: which ones may, and what is then left to copy, by looking at the plan alone.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "plan/plan.hpp"

namespace tessera::exec {

struct Store {
  std::int32_t last = -1;  ///< step that rounds the partial output it updates
  plan::Use to;            ///< into this
  std::int32_t copy = -1;  ///< step that has less to do then
  /// Arguments of the copy that change: of the pair what is left of its rows, and of other pairs
  /// the source where it was what is rounded already.
  std::vector<std::pair<std::size_t, plan::Use>> arguments;
};

/// `able`: the operator of this step can put its partial output there. A step stores once.
std::vector<Store> stores_of(
    const plan::Plan& plan,
    const std::function<bool(std::int32_t last, const plan::Use& to)>& able);

}  // namespace tessera::exec

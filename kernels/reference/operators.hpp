// SPDX-License-Identifier: Apache-2.0
// The reference implementations; arguments as listed in ops/call.hpp, attention brief section 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/call.hpp"

namespace tessera::kernels::reference {

void attention_forward(const ops::Call& call);
void attention_backward(const ops::Call& call);
void attention_merge(const ops::Call& call);
void attention_delta(const ops::Call& call);
void attention_sink(const ops::Call& call);
void attention_sink_grad(const ops::Call& call);
void attention_reset(const ops::Call& call);
void tensor_zero(const ops::Call& call);
void tensor_copy(const ops::Call& call);
void tensor_add(const ops::Call& call);
void tensor_sum(const ops::Call& call);

/// Merges one row (section 1.2): (o, lse) <- (o, lse) + (o_in, lse_in). (0, -inf) is the identity,
/// and a side of weight zero is not read, so whatever it holds cannot spread.
template <class A>
void merge_row(std::int64_t dim, const A* o_in, A lse_in, A* o, A& lse) {
  const A empty = -std::numeric_limits<A>::infinity();
  if (lse == empty && lse_in == empty) return;
  const A top = std::max(lse, lse_in);
  const A w = std::exp(lse - top), w_in = std::exp(lse_in - top);
  for (std::int64_t c = 0; c < dim; ++c) {
    const A kept = w == 0 ? A(0) : w * o[c];
    const A added = w_in == 0 ? A(0) : w_in * o_in[c];
    o[c] = (kept + added) / (w + w_in);
  }
  lse = top + std::log(w + w_in);
}

}  // namespace tessera::kernels::reference

// SPDX-License-Identifier: Apache-2.0
// The portable implementations; arguments as listed in ops/call.hpp.
#pragma once

#include "ops/call.hpp"

namespace tessera::kernels::portable {

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

}  // namespace tessera::kernels::portable

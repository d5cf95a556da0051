// SPDX-License-Identifier: Apache-2.0
// Names of the reference operators.
#include "kernels/reference/register.hpp"

#include "kernels/reference/operators.hpp"
#include "ops/signature.hpp"

namespace tessera::kernels {

void register_reference(ops::Registry& registry) {
  const auto add = [&](const char* op, void (*run)(const ops::Call&)) {
    const auto supports = [](const ops::Call& c) { return mismatch(c).empty() && on_host(c); };
    registry.add({op, "reference", 0, supports, run});
  };
  add("attention.forward", reference::attention_forward);
  add("attention.backward", reference::attention_backward);
  add("attention.merge", reference::attention_merge);
  add("attention.delta", reference::attention_delta);
  add("attention.sink", reference::attention_sink);
  add("attention.sink_grad", reference::attention_sink_grad);
  add("attention.reset", reference::attention_reset);
  add("tensor.zero", reference::tensor_zero);
  add("tensor.copy", reference::tensor_copy);
  add("tensor.add", reference::tensor_add);
  add("tensor.sum", reference::tensor_sum);
}

}  // namespace tessera::kernels

// SPDX-License-Identifier: Apache-2.0
// Names of the portable operators.
#include "kernels/kokkos/register.hpp"

#include "kernels/kokkos/operators.hpp"
#include "ops/signature.hpp"

namespace tessera::kernels {

void register_kokkos(ops::Registry& registry) {
  const auto add = [&](const char* op, void (*run)(const ops::Call&)) {
    const auto supports = [](const ops::Call& c) { return mismatch(c).empty() && on_host(c); };
    registry.add({op, "kokkos", 10, supports, run});
  };
  add("attention.forward", portable::attention_forward);
  add("attention.backward", portable::attention_backward);
  add("attention.merge", portable::attention_merge);
  add("attention.delta", portable::attention_delta);
  add("attention.sink", portable::attention_sink);
  add("attention.sink_grad", portable::attention_sink_grad);
  add("attention.reset", portable::attention_reset);
  add("tensor.zero", portable::tensor_zero);
  add("tensor.copy", portable::tensor_copy);
  add("tensor.add", portable::tensor_add);
}

}  // namespace tessera::kernels

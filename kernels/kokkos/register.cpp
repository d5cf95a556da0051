// SPDX-License-Identifier: Apache-2.0
// Names of the portable operators.
#include "kernels/kokkos/register.hpp"

#include "kernels/kokkos/device.hpp"
#include "kernels/kokkos/operators.hpp"
#include "ops/signature.hpp"

namespace tessera::kernels {
namespace {

struct Operator {
  const char* name;
  void (*run)(const ops::Call&);
};
constexpr Operator on_tiles[] = {{"attention.forward", portable::attention_forward},
                                 {"attention.backward", portable::attention_backward}};
/// These go to where the memory of the call is.
constexpr Operator on_rows[] = {
    {"attention.merge", portable::attention_merge},
    {"attention.delta", portable::attention_delta},
    {"attention.sink", portable::attention_sink},
    {"attention.sink_grad", portable::attention_sink_grad},
    {"attention.reset", portable::attention_reset},
    {"tensor.zero", portable::tensor_zero},
    {"tensor.copy", portable::tensor_copy},
    {"tensor.add", portable::tensor_add},
    {"tensor.sum", portable::tensor_sum},
};

}  // namespace

void register_kokkos(ops::Registry& registry) {
  const auto add = [&](const Operator& op) {
    const auto supports = [](const ops::Call& c) { return mismatch(c).empty() && on_host(c); };
    registry.add({op.name, "kokkos", 10, supports, op.run});
  };
  for (const Operator& op : on_tiles) add(op);
  for (const Operator& op : on_rows) add(op);
#ifdef TESSERA_KOKKOS_CUDA
  portable::add_on_device(registry, "attention.forward", portable::attention_forward_on_device);
  portable::add_on_device(registry, "attention.backward", portable::attention_backward_on_device);
  for (const Operator& op : on_rows) portable::add_on_device(registry, op.name, op.run);
#endif
}

}  // namespace tessera::kernels

// SPDX-License-Identifier: Apache-2.0
// Streams as instances of Kokkos::Cuda, and what these are asked to do.
#include "kernels/kokkos/device.hpp"

#include <map>
#include <mutex>

#include "base/error.hpp"
#include "kernels/kokkos/attention_rows.hpp"
#include "ops/signature.hpp"

namespace tessera::kernels::portable {
namespace {

bool supports(const ops::Call& call) {
  const bool rows = call.name == "attention.forward" || call.name == "attention.backward";
  return ops::mismatch(call).empty() && std::ranges::all_of(call.args, [&](const TensorRef& t) {
           return t.space == Space::cuda && (t.shape[2] <= 1 || t.stride[2] == 1) &&
                  (!rows || t.shape[2] <= longest_row);
         });
}

}  // namespace

/// An instance holds about a MiB of the device. A stream that is destroyed may leave its handle to
/// another one, for which the instance serves as well.
template <>
Kokkos::Cuda space_of<Kokkos::Cuda>(const ops::Call& call) {
  static std::mutex mutex;
  static std::map<void*, Kokkos::Cuda> spaces;
  const std::lock_guard lock(mutex);
  const auto known = spaces.find(call.stream);
  if (known != spaces.end()) return known->second;
  if (spaces.empty()) Kokkos::push_finalize_hook([] { spaces.clear(); });
  return spaces.emplace(call.stream, Kokkos::Cuda(static_cast<cudaStream_t>(call.stream)))
      .first->second;
}

void add_on_device(ops::Registry& registry, const char* op, void (*run)(const ops::Call&)) {
  const auto checked = [op, run](const ops::Call& call) {
    run(call);
    const cudaError_t code = cudaGetLastError();
    if (code != cudaSuccess)
      throw Error(Exit::environment,
                  std::string(op) + " failed on the device: " + cudaGetErrorString(code));
  };
  const auto prepare = [](const ops::Call& call) { space_of<Kokkos::Cuda>(call); };
  registry.add({op, "kokkos-cuda", 3, supports, checked, prepare});
}

void attention_forward_on_device(const ops::Call& call) {
  forward_rows(space_of<Kokkos::Cuda>(call), call);
}
void attention_backward_on_device(const ops::Call& call) {
  backward_rows(space_of<Kokkos::Cuda>(call), call);
}

}  // namespace tessera::kernels::portable

// SPDX-License-Identifier: Apache-2.0
// Start and end of Kokkos. It does not see the command line: it would answer --help itself. And the
// one loop over its host space for kernels that are compiled without it.
#include "kernels/kokkos/runtime.hpp"

#include <Kokkos_Core.hpp>

#include "kernels/kokkos/tile.hpp"
#ifdef TESSERA_KOKKOS_CUDA
#include "base/error.hpp"
#include "memory/cuda.hpp"
#endif

namespace tessera::kernels {

KokkosRuntime::KokkosRuntime() {
#ifdef TESSERA_KOKKOS_CUDA
  if (memory::device_count() == 0)  // it would abort
    throw Error(Exit::environment,
                "this build's Kokkos has CUDA and does not start without a device",
                "run where there is a GPU, or build with a Kokkos for the host (Kokkos_DIR)");
#endif
  Kokkos::initialize();
}
KokkosRuntime::~KokkosRuntime() { Kokkos::finalize(); }

std::string kokkos_version() {
  const auto part = [](int divisor) { return std::to_string(KOKKOS_VERSION / divisor % 100); };
  std::string spaces = Kokkos::DefaultExecutionSpace::name();
  const std::string host = Kokkos::DefaultHostExecutionSpace::name();
  if (host != spaces) spaces += ", " + host;
  return part(10000) + "." + part(100) + "." + part(1) + " (execution spaces: " + spaces + ")";
}

void portable::every_key_head(const char* label, std::int64_t heads,
                              const std::function<void(std::int64_t)>& f) {
  using Space = Kokkos::DefaultHostExecutionSpace;
  using Policy = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;
  Kokkos::parallel_for(label, Policy(0, heads), [&](std::int64_t head) { f(head); });
  Space().fence();
}

}  // namespace tessera::kernels

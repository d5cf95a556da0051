// SPDX-License-Identifier: Apache-2.0
// Unmanaged Kokkos views of the caller's memory, and the loops of bandwidth-bound operators.
#pragma once

#include <Kokkos_Core.hpp>

#include "memory/tensor_ref.hpp"

namespace tessera::kernels::portable {

using HostSpace = Kokkos::DefaultHostExecutionSpace;

template <class T>
using StridedView = Kokkos::View<T***, Kokkos::LayoutStride, Kokkos::HostSpace,
                                 Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// The tensor as [shape0, shape1, shape2] with its own strides; nothing is copied.
template <class T>
StridedView<T> view(const TensorRef& t) {
  const auto n = [](std::int64_t x) { return static_cast<std::size_t>(x); };
  return StridedView<T>(
      t.as<T>(), Kokkos::LayoutStride(n(t.shape[0]), n(t.stride[0]), n(t.shape[1]), n(t.stride[1]),
                                      n(t.shape[2]), n(t.stride[2])));
}

/// f(i) for i in [0, n) on the host; done on return.
template <class F>
void every(const char* label, std::int64_t n, F f) {
  using Policy = Kokkos::RangePolicy<HostSpace, Kokkos::IndexType<std::int64_t>>;
  if (n <= 0) return;
  Kokkos::parallel_for(label, Policy(HostSpace(), 0, n), f);
  HostSpace().fence();
}

}  // namespace tessera::kernels::portable

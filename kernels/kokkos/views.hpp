// SPDX-License-Identifier: Apache-2.0
// Unmanaged Kokkos views of the caller's memory, host or device, and the element types in them.
#pragma once

#include <Kokkos_Core.hpp>
#include <limits>
#include <type_traits>

#include "base/dtype.hpp"
#include "memory/tensor_ref.hpp"

// Bodies of loops are compiled for host and device; those with host types never run on a device.
#ifdef __NVCC__
#pragma nv_diag_suppress 20011, 20014
#endif

namespace tessera::kernels::portable {

using HostSpace = Kokkos::DefaultHostExecutionSpace;

template <class Exec>
inline constexpr bool is_device = !std::is_same_v<Exec, HostSpace>;

template <class A>
inline constexpr A minus_infinity = -std::numeric_limits<A>::infinity();

/// How kernels of a space see numbers of storage type T. On a device those of 16 bits are Kokkos'
/// own types: the same bits, and conversions that run there.
template <class Exec, class T>
struct ElementOf {
  using type = T;
};
#ifdef TESSERA_KOKKOS_CUDA
template <>
struct ElementOf<Kokkos::Cuda, BFloat16> {
  using type = Kokkos::Experimental::bhalf_t;
};
template <>
struct ElementOf<Kokkos::Cuda, Float16> {
  using type = Kokkos::Experimental::half_t;
};
#endif

template <class Exec, class T>
using StridedView =
    Kokkos::View<typename ElementOf<Exec, T>::type***, Kokkos::LayoutStride,
                 typename Exec::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// The tensor as [shape0, shape1, shape2] with its own strides; nothing is copied.
template <class Exec, class T>
StridedView<Exec, T> view(const TensorRef& t) {
  const auto n = [](std::int64_t x) { return static_cast<std::size_t>(x); };
  return StridedView<Exec, T>(t.as<typename ElementOf<Exec, T>::type>(),
                              Kokkos::LayoutStride(n(t.shape[0]), n(t.stride[0]), n(t.shape[1]),
                                                   n(t.stride[1]), n(t.shape[2]), n(t.stride[2])));
}

}  // namespace tessera::kernels::portable

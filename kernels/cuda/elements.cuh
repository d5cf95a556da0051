// SPDX-License-Identifier: Apache-2.0
// Element types on the device: conversion as in base/dtype.hpp, types in which sums are kept, and
// the step from a run-time element type to a template argument.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/params.hpp"

namespace tessera::kernels::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class To, class From>
__device__ __forceinline__ To convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<To, bf16>) {
    return __float2bfloat16_rn(convert<float>(x));
  } else if constexpr (std::is_same_v<To, f16>) {
    return __float2half_rn(convert<float>(x));
  } else if constexpr (std::is_same_v<From, bf16>) {
    return static_cast<To>(__bfloat162float(x));
  } else if constexpr (std::is_same_v<From, f16>) {
    return static_cast<To>(__half2float(x));
  } else {
    return static_cast<To>(x);
  }
}

template <class F>
cudaError_t visit(Element t, F f) {
  switch (t) {
    case Element::f64:
      return f(double{});
    case Element::f32:
      return f(float{});
    case Element::bf16:
      return f(bf16{});
    case Element::f16:
      return f(f16{});
  }
  return cudaErrorInvalidValue;
}

inline int64_t size_of(Element t) { return t == Element::f64 ? 8 : t == Element::f32 ? 4 : 2; }

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

template <class T, int n>
struct alignas(sizeof(T) * n < 16 ? sizeof(T) * n : 16) Pack {
  T at[n];
};

}  // namespace tessera::kernels::cuda

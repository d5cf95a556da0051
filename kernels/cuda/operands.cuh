// SPDX-License-Identifier: Apache-2.0
// For which element types and head sizes the tensor-core kernels are made, in one place.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/params.hpp"

namespace tessera::kernels::cuda {

/// f<E, D, DV>() with what x says as constants; cudaErrorInvalidValue where there is no kernel.
template <class F>
cudaError_t with_operands(Operands x, F f) {
  const auto of_type = [&]<class E>(E) {
    if (x.d == 64 && x.dv == 64) return f.template operator()<E, 64, 64>();
    if (x.d == 96 && x.dv == 96) return f.template operator()<E, 96, 96>();
    if (x.d == 128 && x.dv == 128) return f.template operator()<E, 128, 128>();
    if (x.d == 192 && x.dv == 128) return f.template operator()<E, 192, 128>();
    if (x.d == 256 && x.dv == 256) return f.template operator()<E, 256, 256>();
    return cudaErrorInvalidValue;
  };
  if (x.type == Element::bf16) return of_type(Bf16{});
  if (x.type == Element::f16) return of_type(F16{});
  return cudaErrorInvalidValue;
}

}  // namespace tessera::kernels::cuda

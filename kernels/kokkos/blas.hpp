// SPDX-License-Identifier: Apache-2.0
// Row-major GEMM for f32 and f64 through CBLAS. Sizes of one product fit in int by construction
// (they are block sizes); offsets into tensors are made by the caller in 64 bits.
#pragma once

#include <cblas.h>

#include <cstdint>

namespace tessera::kernels::portable {

/// A matrix operand: first element, distance of rows, used transposed or not.
template <class A>
struct Matrix {
  A* data;
  std::int64_t stride;
  bool transposed = false;
};

template <class A>
inline void gemm(std::int64_t m, std::int64_t n, std::int64_t k, A alpha, Matrix<const A> a,
                 Matrix<const A> b, A beta, Matrix<A> c) {
  const auto ta = a.transposed ? CblasTrans : CblasNoTrans;
  const auto tb = b.transposed ? CblasTrans : CblasNoTrans;
  const int mi = static_cast<int>(m), ni = static_cast<int>(n), ki = static_cast<int>(k);
  const int la = static_cast<int>(a.stride), lb = static_cast<int>(b.stride);
  const int lc = static_cast<int>(c.stride);
  if constexpr (sizeof(A) == 4) {
    cblas_sgemm(CblasRowMajor, ta, tb, mi, ni, ki, alpha, a.data, la, b.data, lb, beta, c.data, lc);
  } else {
    cblas_dgemm(CblasRowMajor, ta, tb, mi, ni, ki, alpha, a.data, la, b.data, lb, beta, c.data, lc);
  }
}

}  // namespace tessera::kernels::portable

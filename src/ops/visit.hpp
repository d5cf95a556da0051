// SPDX-License-Identifier: Apache-2.0
// From a run-time element type to a template argument, written once for all host backends.
#pragma once

#include <type_traits>

#include "base/dtype.hpp"

namespace tessera::ops {

/// Type in which sums over storage type T are kept (see accumulate_type).
template <class T>
using Accumulate = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls f with a value of the C++ type that stores `t`; its type is what matters.
template <class F>
void visit_dtype(DType t, F&& f) {
  switch (t) {
    case DType::f64:
      return f(double{});
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(BFloat16{});
    case DType::f16:
      return f(Float16{});
  }
}

}  // namespace tessera::ops

// SPDX-License-Identifier: Apache-2.0
// Non-owning view of a tensor of up to three dimensions with strides, last one contiguous.
// This is what travels between rooms: activations [token, head, dim], statistics [head, token].
#pragma once

#include <array>
#include <cstdint>

#include "base/dtype.hpp"
#include "base/range.hpp"

namespace tessera {

enum class Space : std::uint8_t { host, pinned, cuda };

struct TensorRef {
  void* data = nullptr;
  DType dtype = DType::f32;
  Space space = Space::host;
  std::array<std::int64_t, 3> shape{0, 0, 1};   // unused trailing dimensions are 1
  std::array<std::int64_t, 3> stride{0, 0, 1};  // in elements; stride of the last used one is 1

  std::int64_t count() const { return shape[0] * shape[1] * shape[2]; }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  /// Element (i, j, k) of a tensor whose dtype is T; 64-bit offsets throughout.
  template <class T>
  T& at(std::int64_t i, std::int64_t j = 0, std::int64_t k = 0) const {
    return as<T>()[i * stride[0] + j * stride[1] + k * stride[2]];
  }
  /// Element of a host tensor of any dtype, widened; and set, rounded.
  double value(std::int64_t i, std::int64_t j = 0, std::int64_t k = 0) const {
    if (dtype == DType::f64) return at<double>(i, j, k);
    if (dtype == DType::f32) return at<float>(i, j, k);
    if (dtype == DType::bf16) return static_cast<double>(at<BFloat16>(i, j, k));
    return static_cast<double>(at<Float16>(i, j, k));
  }
  void set_value(std::int64_t i, std::int64_t j, std::int64_t k, double x) const {
    if (dtype == DType::f64)
      at<double>(i, j, k) = x;
    else if (dtype == DType::f32)
      at<float>(i, j, k) = static_cast<float>(x);
    else if (dtype == DType::bf16)
      at<BFloat16>(i, j, k) = element_cast<BFloat16>(x);
    else
      at<Float16>(i, j, k) = element_cast<Float16>(x);
  }
  /// Sub-tensor of the first two dimensions.
  TensorRef slice(Range d0, Range d1) const {
    TensorRef r = *this;
    r.data =
        static_cast<char*>(data) + (d0.begin * stride[0] + d1.begin * stride[1]) * size_of(dtype);
    r.shape[0] = d0.size();
    r.shape[1] = d1.size();
    return r;
  }
  /// True when the elements lie without gaps in index order, so that one message can carry them.
  bool contiguous() const {
    std::int64_t expected = 1;
    for (int d = 2; d >= 0; --d) {
      if (shape[d] != 1 && stride[d] != expected) return false;
      expected *= shape[d];
    }
    return true;
  }
};

/// Dense row-major view of `data`.
inline TensorRef dense(void* data, DType dtype, std::array<std::int64_t, 3> shape,
                       Space space = Space::host) {
  return {data, dtype, space, shape, {shape[1] * shape[2], shape[2], 1}};
}

}  // namespace tessera

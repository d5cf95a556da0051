// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tensor_map.hpp"

#include <algorithm>

#include "memory/cuda_check.hpp"

namespace tessera::kernels::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
  static const auto encode = memory::driver_function<Encode>("cuTensorMapEncodeTiled");
  return encode;
}

bool sixteen_byte_rows(const TensorRef& t) {
  const auto aligned = [&](int d) {
    return t.shape[d] == 1 || (t.stride[d] > 0 && t.stride[d] * size_of(t.dtype) % 16 == 0);
  };
  return t.stride[2] == 1 && aligned(0) && aligned(1) &&
         reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
}

CUtensorMapDataType type_of(const TensorRef& t) {
  if (t.dtype == DType::f32) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  return t.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

}  // namespace

bool fits_tensor_map(const TensorRef& t) { return size_of(t.dtype) == 2 && sixteen_byte_rows(t); }

bool fits_sum_map(const TensorRef& t) { return t.dtype == DType::f32 && sixteen_byte_rows(t); }

CUtensorMap tensor_map(const TensorRef& t, int rows) {
  const auto stride = [&](int d) {
    return static_cast<cuuint64_t>(t.shape[d] == 1 ? 16 : t.stride[d] * size_of(t.dtype));  // bytes
  };
  const cuuint64_t size[3] = {static_cast<cuuint64_t>(t.shape[2]),
                              static_cast<cuuint64_t>(t.shape[1]),
                              static_cast<cuuint64_t>(t.shape[0])};
  const cuuint64_t strides[2] = {stride(1), stride(0)};
  const auto columns = static_cast<cuuint32_t>(128 / size_of(t.dtype));
  const cuuint32_t box[3] = {columns, 1, static_cast<cuuint32_t>(rows)}, step[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult code =
      encoder()(&map, type_of(t), 3, t.data, size, strides, box, step,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    throw Error(Exit::environment,
                "the driver refused a tensor map, code " + std::to_string(static_cast<int>(code)));
  }
  return map;
}

}  // namespace tessera::kernels::cuda

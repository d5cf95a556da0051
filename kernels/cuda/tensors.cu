// SPDX-License-Identifier: Apache-2.0
// tensor.zero, tensor.copy and tensor.add for any strides and types. Dimensions without gaps are
// joined first; rows that are contiguous and aligned move in pieces of 16 bytes or more.
#include "kernels/cuda/elements.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int threads = 256;

/// Three dimensions, the last one innermost; strides of x and y.
struct Loop {
  int64_t n[3], x[3], y[3];
};

/// Drops dimensions of one element and joins those that lie without a gap in both tensors.
Loop joined(const View& x, const View& y) {
  Loop loop{{1, 1, 1}, {0, 0, 1}, {0, 0, 1}};
  int at = 3;  // filled from the innermost
  for (int d = 2; d >= 0; --d) {
    const int64_t n = x.shape[d];
    if (n == 1) continue;
    if (at < 3 && x.stride[d] == loop.n[at] * loop.x[at] &&
        y.stride[d] == loop.n[at] * loop.y[at]) {
      loop.n[at] *= n;
      continue;
    }
    --at;
    loop.n[at] = n;
    loop.x[at] = x.stride[d];
    loop.y[at] = y.stride[d];
  }
  return loop;
}

struct Zero {
  static constexpr bool reads_x = false, reads_y = false;
  template <class X, class Y>
  __device__ Y operator()(X, Y) const {
    return convert<Y>(0.f);
  }
};
struct Copy {
  static constexpr bool reads_x = true, reads_y = false;
  template <class X, class Y>
  __device__ Y operator()(X x, Y) const {
    return convert<Y>(x);
  }
};
struct Add {
  static constexpr bool reads_x = true, reads_y = true;
  template <class X, class Y>
  __device__ Y operator()(X x, Y y) const {
    return convert<Y>(convert<Sum<Y>>(y) + convert<Sum<Y>>(x));
  }
};

template <class X, class Y, int n, class F>
__global__ void __launch_bounds__(threads) each(const X* x, Y* y, Loop loop, int64_t pieces, F f) {
  const int64_t id = blockIdx.x * int64_t{threads} + threadIdx.x;
  if (id >= pieces) return;
  int64_t at_x = 0, at_y = 0;
  if (loop.n[0] == 1 && loop.n[1] == 1) {
    at_x = id * n * loop.x[2];
    at_y = id * n * loop.y[2];
  } else {
    const int64_t inner = loop.n[2] / n, row = id / inner, k = (id - row * inner) * n;
    const int64_t i = row / loop.n[1], j = row - i * loop.n[1];
    at_x = i * loop.x[0] + j * loop.x[1] + k * loop.x[2];
    at_y = i * loop.y[0] + j * loop.y[1] + k * loop.y[2];
  }
  Pack<X, n> from{};
  Pack<Y, n> to{};
  if constexpr (F::reads_x) from = *reinterpret_cast<const Pack<X, n>*>(x + at_x);
  if constexpr (F::reads_y) to = *reinterpret_cast<const Pack<Y, n>*>(y + at_y);
#pragma unroll
  for (int e = 0; e < n; ++e) to.at[e] = f(from.at[e], to.at[e]);
  *reinterpret_cast<Pack<Y, n>*>(y + at_y) = to;
}

template <class T, int n>
bool fits(const void* data, const int64_t (&stride)[3], int64_t length) {
  const auto unit = static_cast<int64_t>(alignof(Pack<T, n>));
  return stride[2] == 1 && length % n == 0 && reinterpret_cast<uintptr_t>(data) % unit == 0 &&
         stride[0] * static_cast<int64_t>(sizeof(T)) % unit == 0 &&
         stride[1] * static_cast<int64_t>(sizeof(T)) % unit == 0;
}

template <class X, class Y, int n, class F>
cudaError_t launch(const View& x, const View& y, const Loop& loop, F f, cudaStream_t stream) {
  const int64_t pieces = loop.n[0] * loop.n[1] * (loop.n[2] / n);
  const int64_t blocks = (pieces + threads - 1) / threads;
  if (blocks >= int64_t{1} << 31) return cudaErrorInvalidValue;
  each<X, Y, n, F><<<static_cast<unsigned>(blocks), threads, 0, stream>>>(
      static_cast<const X*>(x.data), static_cast<Y*>(y.data), loop, pieces, f);
  return cudaGetLastError();
}

template <class F>
cudaError_t run(const View& x, const View& y, F f, cudaStream_t stream) {
  if (x.shape[0] * x.shape[1] * x.shape[2] == 0) return cudaSuccess;
  const Loop loop = joined(x, y);
  return visit(x.type, [&]<class X>(X) {
    return visit(y.type, [&]<class Y>(Y) {
      constexpr int n = 16 / (sizeof(X) < sizeof(Y) ? sizeof(X) : sizeof(Y));
      if (fits<X, n>(x.data, loop.x, loop.n[2]) && fits<Y, n>(y.data, loop.y, loop.n[2])) {
        return launch<X, Y, n>(x, y, loop, f, stream);
      }
      return launch<X, Y, 1>(x, y, loop, f, stream);
    });
  });
}

}  // namespace

cudaError_t launch_zero(const View& x, cudaStream_t stream) { return run(x, x, Zero{}, stream); }
cudaError_t launch_copy(const View& x, const View& y, cudaStream_t stream) {
  return run(x, y, Copy{}, stream);
}
cudaError_t launch_add(const View& x, const View& y, cudaStream_t stream) {
  return run(x, y, Add{}, stream);
}

}  // namespace tessera::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
// Attention without tensor cores, for f64, f32 and whatever the other kernels refuse: a warp for
// each row, which touches its visible columns only. Correct first; slow.
#include "kernels/cuda/elements.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int warps = 8;
constexpr int most = 16;  ///< elements of a row that one lane holds: dimensions up to 512

template <class T>
__device__ __forceinline__ const T* row(const View& x, int64_t i, int64_t j) {
  return static_cast<const T*>(x.data) + i * x.stride[0] + j * x.stride[1];
}

template <class A>
struct Lane {
  A x[most];
  template <class T>
  __device__ void load(const View& v, int64_t i, int64_t j) {
    const T* from = row<T>(v, i, j);
#pragma unroll
    for (int e = 0; e < most; ++e) {
      const int64_t c = threadIdx.x % 32 + 32 * e;
      x[e] = c < v.shape[2] ? convert<A>(from[c * v.stride[2]]) : A(0);
    }
  }
  __device__ void clear() {
#pragma unroll
    for (A& e : x) e = 0;
  }
  __device__ A dot(const Lane& o) const {
    A sum = 0;
#pragma unroll
    for (int e = 0; e < most; ++e) sum += x[e] * o.x[e];
    return warp_sum(sum);
  }
  /// this <- keep this + take o
  __device__ void blend(A keep, A take, const Lane& o) {
#pragma unroll
    for (int e = 0; e < most; ++e) x[e] = keep * x[e] + take * o.x[e];
  }
  /// memory <- keep memory + take this; keep = 0 does not read.
  __device__ void store(const View& v, int64_t i, int64_t j, A keep, A take) const {
    A* to = const_cast<A*>(row<A>(v, i, j));
#pragma unroll
    for (int e = 0; e < most; ++e) {
      const int64_t c = threadIdx.x % 32 + 32 * e;
      if (c >= v.shape[2]) continue;
      const A old = keep == 0 ? A(0) : to[c * v.stride[2]];
      to[c * v.stride[2]] = keep * old + take * x[e];
    }
  }
};

/// Capped logit and the slope of the cap.
template <class A>
__device__ __forceinline__ A logit(A dot, const PlainParams& p, A* slope) {
  const A x = static_cast<A>(p.scale) * dot, cap = static_cast<A>(p.softcap);
  *slope = 1;
  if (cap <= 0) return x;
  const A t = tanh(x / cap);
  *slope = 1 - t * t;
  return cap * t;
}

__device__ __forceinline__ int2 keys_of(const TileBand& b, int q) {
  if (q < b.row0 || q >= b.row1) return {0, 0};
  return {max(b.col0, q + b.lo), min(b.col1, q + b.hi + 1)};
}
__device__ __forceinline__ int2 queries_of(const TileBand& b, int k) {
  if (k < b.col0 || k >= b.col1) return {0, 0};
  return {max(b.row0, k - b.hi), min(b.row1, k - b.lo + 1)};
}

template <class T>
__global__ void __launch_bounds__(32 * warps) forward_kernel(const PlainParams p) {
  using A = Sum<T>;
  const int64_t id = blockIdx.x * int64_t{warps} + threadIdx.x / 32;
  const int64_t i = id / p.q.shape[1], h = id % p.q.shape[1];
  if (i >= p.q.shape[0]) return;
  const int64_t hk = h / (p.q.shape[1] / p.k.shape[1]);
  Lane<A> q, k, v, out;
  q.template load<T>(p.q, i, h);
  out.clear();
  A top = -static_cast<A>(INFINITY), sum = 0, slope;
  for (int b = 0; b < p.num_bands; ++b) {
    const int2 keys = keys_of(p.bands[b], static_cast<int>(i));
    for (int j = keys.x; j < keys.y; ++j) {
      k.template load<T>(p.k, j, hk);
      v.template load<T>(p.v, j, hk);
      const A s = logit(q.dot(k), p, &slope);
      if (s == -static_cast<A>(INFINITY)) continue;
      const A next = s > top ? s : top, w = exp(s - next), keep = exp(top - next);
      sum = sum * keep + w;
      out.blend(keep, w, v);
      top = next;
    }
  }
  if (sum == 0) return;
  A* lse = const_cast<A*>(row<A>(p.lse, h, i));
  const A before = *lse, here = top + log(sum), high = before > here ? before : here;
  __syncwarp();
  const A w = exp(before - high), w_here = exp(here - high);
  out.store(p.o, i, h, w / (w + w_here), w_here / (w + w_here) / sum);
  if (threadIdx.x % 32 == 0) *lse = high + log(w + w_here);
}

template <class T>
__global__ void __launch_bounds__(32 * warps) queries_kernel(const PlainParams p) {
  using A = Sum<T>;
  const int64_t id = blockIdx.x * int64_t{warps} + threadIdx.x / 32;
  const int64_t i = id / p.q.shape[1], h = id % p.q.shape[1];
  if (i >= p.q.shape[0]) return;
  const int64_t hk = h / (p.q.shape[1] / p.k.shape[1]);
  const A lse = *row<A>(p.lse, h, i), delta = *row<A>(p.delta, h, i);
  if (lse == -static_cast<A>(INFINITY)) return;
  Lane<A> q, g, k, v, out;
  q.template load<T>(p.q, i, h);
  g.template load<T>(p.grad, i, h);
  out.clear();
  A slope;
  for (int b = 0; b < p.num_bands; ++b) {
    const int2 keys = keys_of(p.bands[b], static_cast<int>(i));
    for (int j = keys.x; j < keys.y; ++j) {
      k.template load<T>(p.k, j, hk);
      v.template load<T>(p.v, j, hk);
      const A w = exp(logit(q.dot(k), p, &slope) - lse);
      out.blend(A(1), w * (g.dot(v) - delta) * slope, k);
    }
  }
  out.store(p.dq, i, h, A(1), static_cast<A>(p.scale));
}

template <class T>
__global__ void __launch_bounds__(32 * warps) keys_kernel(const PlainParams p) {
  using A = Sum<T>;
  const int64_t id = blockIdx.x * int64_t{warps} + threadIdx.x / 32;
  const int64_t j = id / p.k.shape[1], hk = id % p.k.shape[1];
  if (j >= p.k.shape[0]) return;
  const int64_t group = p.q.shape[1] / p.k.shape[1];
  Lane<A> k, v, q, g, dk, dv;
  k.template load<T>(p.k, j, hk);
  v.template load<T>(p.v, j, hk);
  dk.clear();
  dv.clear();
  A slope;
  for (int64_t h = hk * group; h < (hk + 1) * group; ++h) {
    for (int b = 0; b < p.num_bands; ++b) {
      const int2 rows = queries_of(p.bands[b], static_cast<int>(j));
      for (int i = rows.x; i < rows.y; ++i) {
        const A lse = *row<A>(p.lse, h, i);
        if (lse == -static_cast<A>(INFINITY)) continue;
        q.template load<T>(p.q, i, h);
        g.template load<T>(p.grad, i, h);
        const A w = exp(logit(q.dot(k), p, &slope) - lse);
        dv.blend(A(1), w, g);
        dk.blend(A(1), w * (g.dot(v) - *row<A>(p.delta, h, i)) * slope, q);
      }
    }
  }
  dk.store(p.dk, j, hk, A(1), static_cast<A>(p.scale));
  dv.store(p.dv, j, hk, A(1), A(1));
}

unsigned blocks(const View& x) {
  return static_cast<unsigned>((x.shape[0] * x.shape[1] + warps - 1) / warps);
}

}  // namespace

cudaError_t launch_plain_forward(const PlainParams& p, cudaStream_t stream) {
  if (p.num_bands == 0 || blocks(p.q) == 0) return cudaSuccess;
  return visit(p.q.type, [&]<class T>(T) {
    forward_kernel<T><<<blocks(p.q), 32 * warps, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t launch_plain_backward(const PlainParams& p, cudaStream_t stream) {
  if (p.num_bands == 0 || blocks(p.q) == 0 || blocks(p.k) == 0) return cudaSuccess;
  return visit(p.q.type, [&]<class T>(T) {
    queries_kernel<T><<<blocks(p.q), 32 * warps, 0, stream>>>(p);
    keys_kernel<T><<<blocks(p.k), 32 * warps, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace tessera::kernels::cuda

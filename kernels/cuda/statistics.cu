// SPDX-License-Identifier: Apache-2.0
// Merge of partial outputs, Delta, sink and reset (attention brief 1.2 to 1.4): a warp for each
// row of one head, memory bound. Rows of weight zero are not read, whatever they hold.
#include "kernels/cuda/elements.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int threads = 256;

/// Row of this warp: token and head; neighbours in a block are heads of one token.
struct Row {
  int64_t token, head;
  bool exists;
};
__device__ __forceinline__ Row row_of(int64_t tokens, int64_t heads) {
  const int64_t row = blockIdx.x * int64_t{threads / 32} + threadIdx.x / 32;
  return {row / heads, row % heads, row < tokens * heads};
}

template <class T>
__device__ __forceinline__ T* at(const View& x, int64_t i, int64_t j) {
  return static_cast<T*>(x.data) + i * x.stride[0] + j * x.stride[1];
}

template <class A>
constexpr A empty = -static_cast<A>(INFINITY);

/// o <- keep o + take in over one row, a factor of 0 not reading its side.
template <class A, int n, class X = A>
__device__ __forceinline__ void blend(const X* in, A* o, int64_t dim, A keep, A take) {
  for (int64_t c = threadIdx.x % 32 * n; c < dim; c += 32 * n) {
    Pack<X, n> x{};
    Pack<A, n> y{};
    if (take != 0) x = *reinterpret_cast<const Pack<X, n>*>(in + c);
    if (keep != 0) y = *reinterpret_cast<const Pack<A, n>*>(o + c);
#pragma unroll
    for (int e = 0; e < n; ++e) y.at[e] = keep * y.at[e] + take * convert<A>(x.at[e]);
    *reinterpret_cast<Pack<A, n>*>(o + c) = y;
  }
}

template <class X, class A, int n>
__global__ void __launch_bounds__(threads) merge_kernel(State in, State acc) {
  const Row r = row_of(acc.o.shape[0], acc.o.shape[1]);
  if (!r.exists) return;
  A* lse = at<A>(acc.lse, r.head, r.token);
  const A before = *lse, other = *at<A>(in.lse, r.head, r.token);
  __syncwarp();
  if (before == empty<A> && other == empty<A>) return;
  const A top = before > other ? before : other;
  const A w = exp(before - top), w_in = exp(other - top);
  if (w_in == 0) return;  // nothing is added and the statistics stay
  blend<A, n>(at<X>(in.o, r.token, r.head), at<A>(acc.o, r.token, r.head), acc.o.shape[2],
              w / (w + w_in), w_in / (w + w_in));
  if (threadIdx.x % 32 == 0) *lse = top + log(w + w_in);
}

template <class A, int n>
__global__ void __launch_bounds__(threads) sink_kernel(View sink, State acc) {
  const Row r = row_of(acc.o.shape[0], acc.o.shape[1]);
  if (!r.exists) return;
  A* lse = at<A>(acc.lse, r.head, r.token);
  const A before = *lse, z = *at<A>(sink, r.head, 0);
  __syncwarp();
  if (before == empty<A> && z == empty<A>) return;
  const A top = before > z ? before : z;
  const A after = top + log(exp(before - top) + exp(z - top));
  blend<A, n, A>(nullptr, at<A>(acc.o, r.token, r.head), acc.o.shape[2], exp(before - after), A(0));
  if (threadIdx.x % 32 == 0) *lse = after;
}

template <class A, int n>
__global__ void __launch_bounds__(threads) reset_kernel(State out) {
  const Row r = row_of(out.o.shape[0], out.o.shape[1]);
  if (!r.exists) return;
  blend<A, n, A>(nullptr, at<A>(out.o, r.token, r.head), out.o.shape[2], A(0), A(0));
  if (threadIdx.x % 32 == 0) *at<A>(out.lse, r.head, r.token) = empty<A>;
}

template <class X, class Y, int n>
__global__ void __launch_bounds__(threads) delta_kernel(View o, View grad, View delta) {
  using A = Sum<X>;
  const Row r = row_of(o.shape[0], o.shape[1]);
  if (!r.exists) return;
  const X* x = at<X>(o, r.token, r.head);
  const Y* y = at<Y>(grad, r.token, r.head);
  A sum = 0;
  for (int64_t c = threadIdx.x % 32 * n; c < o.shape[2]; c += 32 * n) {
    const auto a = *reinterpret_cast<const Pack<X, n>*>(x + c);
    const auto b = *reinterpret_cast<const Pack<Y, n>*>(y + c);
#pragma unroll
    for (int e = 0; e < n; ++e) sum += convert<A>(a.at[e]) * convert<A>(b.at[e]);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) *at<A>(delta, r.head, r.token) = sum;
}

template <class T, int n>
__global__ void __launch_bounds__(threads) output_of_delta_kernel(View grad, View delta, View o) {
  const Row r = row_of(o.shape[0], o.shape[1]);
  if (!r.exists) return;
  const T* g = at<T>(grad, r.token, r.head);
  T* out = at<T>(o, r.token, r.head);
  float square = 0;
  for (int64_t c = threadIdx.x % 32 * n; c < o.shape[2]; c += 32 * n) {
    const auto x = *reinterpret_cast<const Pack<T, n>*>(g + c);
#pragma unroll
    for (int e = 0; e < n; ++e) square += convert<float>(x.at[e]) * convert<float>(x.at[e]);
  }
  square = warp_sum(square);
  const float factor = square > 0 ? *at<float>(delta, r.head, r.token) / square : 0;
  for (int64_t c = threadIdx.x % 32 * n; c < o.shape[2]; c += 32 * n) {
    auto x = *reinterpret_cast<const Pack<T, n>*>(g + c);
#pragma unroll
    for (int e = 0; e < n; ++e) x.at[e] = convert<T>(factor * convert<float>(x.at[e]));
    *reinterpret_cast<Pack<T, n>*>(out + c) = x;
  }
}

/// One block for each head; the order of the sum does not change from run to run.
template <class A>
__global__ void __launch_bounds__(threads)
    sink_grad_kernel(View sink, View lse, View delta, View grad) {
  const int64_t head = blockIdx.x;
  const A z = *at<A>(sink, head, 0);
  A sum = 0;
  for (int64_t i = threadIdx.x; i < lse.shape[1]; i += threads) {
    const A l = *at<A>(lse, head, i);
    if (l != empty<A>) sum += exp(z - l) * *at<A>(delta, head, i);
  }
  __shared__ A parts[threads / 32];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < threads / 32; ++w) sum += parts[w];
  *at<A>(grad, head, 0) -= sum;
}

/// Rows of x can be moved in pieces of n elements.
bool fits(const View& x, int n) {
  const int64_t size = size_of(x.type), unit = n * size < 16 ? n * size : 16;
  return x.shape[2] % n == 0 && x.stride[2] == 1 && x.stride[0] * size % unit == 0 &&
         x.stride[1] * size % unit == 0 && reinterpret_cast<uintptr_t>(x.data) % unit == 0;
}

unsigned blocks(const View& o) {
  return static_cast<unsigned>((o.shape[0] * o.shape[1] + threads / 32 - 1) / (threads / 32));
}
bool nothing(const View& x) { return x.shape[0] * x.shape[1] * x.shape[2] == 0; }

/// f with an accumulate type, f64 or f32.
template <class F>
cudaError_t visit_sum(Element t, F f) {
  if (t == Element::f64) return f(double{});
  return t == Element::f32 ? f(float{}) : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_merge(const State& in, const State& acc, cudaStream_t stream) {
  if (nothing(acc.o)) return cudaSuccess;
  return visit(in.o.type, [&]<class X>(X) {
    using A = Sum<X>;
    if (size_of(acc.o.type) != sizeof(A)) return cudaErrorInvalidValue;
    constexpr int n = 16 / sizeof(A);
    const bool wide = fits(in.o, n) && fits(acc.o, n);
    const auto kernel = wide ? merge_kernel<X, A, n> : merge_kernel<X, A, 1>;
    kernel<<<blocks(acc.o), threads, 0, stream>>>(in, acc);
    return cudaGetLastError();
  });
}

cudaError_t launch_output_of_delta(const View& grad, const View& delta, const View& o,
                                   cudaStream_t stream) {
  if (nothing(o)) return cudaSuccess;
  const auto launch = [&]<class T>(T) {
    const bool wide = fits(grad, 4) && fits(o, 4);
    const auto kernel = wide ? output_of_delta_kernel<T, 4> : output_of_delta_kernel<T, 1>;
    kernel<<<blocks(o), threads, 0, stream>>>(grad, delta, o);
    return cudaGetLastError();
  };
  return o.type == Element::f16 ? launch(f16{}) : launch(bf16{});
}

cudaError_t launch_delta(const View& o, const View& grad, const View& delta, cudaStream_t stream) {
  if (nothing(delta)) return cudaSuccess;
  return visit(o.type, [&]<class X>(X) {
    return visit(grad.type, [&]<class Y>(Y) {
      const auto kernel =
          fits(o, 4) && fits(grad, 4) ? delta_kernel<X, Y, 4> : delta_kernel<X, Y, 1>;
      kernel<<<blocks(o), threads, 0, stream>>>(o, grad, delta);
      return cudaGetLastError();
    });
  });
}

cudaError_t launch_sink(const View& sink, const State& acc, cudaStream_t stream) {
  if (nothing(acc.o)) return cudaSuccess;
  return visit_sum(acc.o.type, [&]<class A>(A) {
    constexpr int n = 16 / sizeof(A);
    const auto kernel = fits(acc.o, n) ? sink_kernel<A, n> : sink_kernel<A, 1>;
    kernel<<<blocks(acc.o), threads, 0, stream>>>(sink, acc);
    return cudaGetLastError();
  });
}

cudaError_t launch_sink_grad(const View& sink, const View& lse, const View& delta, const View& grad,
                             cudaStream_t stream) {
  if (lse.shape[0] == 0) return cudaSuccess;
  return visit_sum(lse.type, [&]<class A>(A) {
    sink_grad_kernel<A>
        <<<static_cast<unsigned>(lse.shape[0]), threads, 0, stream>>>(sink, lse, delta, grad);
    return cudaGetLastError();
  });
}

cudaError_t launch_reset(const State& out, cudaStream_t stream) {
  if (nothing(out.o)) return cudaSuccess;
  return visit_sum(out.o.type, [&]<class A>(A) {
    constexpr int n = 16 / sizeof(A);
    const auto kernel = fits(out.o, n) ? reset_kernel<A, n> : reset_kernel<A, 1>;
    kernel<<<blocks(out.o), threads, 0, stream>>>(out);
    return cudaGetLastError();
  });
}

}  // namespace tessera::kernels::cuda

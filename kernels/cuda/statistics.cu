// SPDX-License-Identifier: Apache-2.0
// Merge of partial outputs, Delta, sink and reset (attention brief 1.2 to 1.4), memory bound: a
// warp for four tokens of one head, all of them under way at once; lane i looks after the
// statistics of the i-th. Rows of weight zero are not read, whatever they hold.
#include "kernels/cuda/elements.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int threads = 256, warps = threads / 32;
constexpr int at_once = 4;  // rows of a warp

/// How the warps of a block share heads and tokens: neighbours are heads of the same tokens, whose
/// rows lie side by side.
struct Split {
  unsigned head_blocks;
  int heads_log2;  // of the heads of a block

  explicit Split(const View& o) : heads_log2(0) {
    while (heads_log2 < 3 && o.shape[1] > 1 << heads_log2) ++heads_log2;
    head_blocks = static_cast<unsigned>(((o.shape[1] - 1) >> heads_log2) + 1);
  }
  unsigned blocks(const View& o) const {
    const int64_t tokens = (warps >> heads_log2) * at_once;
    return static_cast<unsigned>((o.shape[0] + tokens - 1) / tokens) * head_blocks;
  }
};
static_assert(warps == 1 << 3, "heads_log2 is at most 3");

/// Rows of this warp: `count` tokens from `token` on, of one head; count may be 0.
struct Rows {
  int64_t token, head;
  int count, lane;

  __device__ __forceinline__ Rows(const Split& split, const View& o) {
    const int warp = threadIdx.x / 32;
    const unsigned block = blockIdx.x / split.head_blocks;
    lane = threadIdx.x % 32;
    head = (int64_t{blockIdx.x - block * split.head_blocks} << split.heads_log2) +
           (warp & ((1 << split.heads_log2) - 1));
    token = (int64_t{block} * (warps >> split.heads_log2) + (warp >> split.heads_log2)) * at_once;
    const int64_t left = head < o.shape[1] ? o.shape[0] - token : 0;
    count = static_cast<int>(left < at_once ? (left < 0 ? 0 : left) : at_once);
  }
  /// Lanes with a row of their own, and the token of that.
  __device__ __forceinline__ bool own() const { return lane < count; }
  __device__ __forceinline__ int64_t own_token() const { return token + lane; }
};

template <class T>
__device__ __forceinline__ T* at(const View& x, int64_t i, int64_t j) {
  return static_cast<T*>(x.data) + i * x.stride[0] + j * x.stride[1];
}

template <class A>
constexpr A empty = -static_cast<A>(INFINITY);

/// to <- keep o + take in over the rows of a warp, a factor of 0 not reading its side. Lane i holds
/// the factors of the i-th row; where `to` is o, (1, 0) leaves it as it is.
template <class X, class A, class Y, int n>
__device__ __forceinline__ void blend(const Rows& rows, const View* in, const View& out,
                                      const View& to, A keep, A take) {
  A keeps[at_once], takes[at_once];
  bool changes[at_once];
#pragma unroll
  for (int r = 0; r < at_once; ++r) {
    keeps[r] = __shfl_sync(~0u, keep, r);
    takes[r] = __shfl_sync(~0u, take, r);
    changes[r] = r < rows.count && (to.data != out.data || keeps[r] != 1 || takes[r] != 0);
  }
  const A* o = at<A>(out, rows.token, rows.head);
  Y* result = at<Y>(to, rows.token, rows.head);
  const X* from = in ? at<X>(*in, rows.token, rows.head) : nullptr;
  for (int64_t c = rows.lane * n; c < out.shape[2]; c += 32 * n) {
    Pack<X, n> x[at_once]{};
    Pack<A, n> y[at_once]{};
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
      if (changes[r] && takes[r] != 0)
        x[r] = *reinterpret_cast<const Pack<X, n>*>(from + r * in->stride[0] + c);
      if (changes[r] && keeps[r] != 0)
        y[r] = *reinterpret_cast<const Pack<A, n>*>(o + r * out.stride[0] + c);
    }
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
      if (!changes[r]) continue;
      Pack<Y, n> z;
#pragma unroll
      for (int e = 0; e < n; ++e)
        z.at[e] =
            convert<Y>(takes[r] == 0 ? keeps[r] * y[r].at[e]
                                     : keeps[r] * y[r].at[e] + takes[r] * convert<A>(x[r].at[e]));
      *reinterpret_cast<Pack<Y, n>*>(result + r * to.stride[0] + c) = z;
    }
  }
}

template <class X, class A, class Y, int n>
__global__ void __launch_bounds__(threads) merge_kernel(State in, State acc, View to, Split split) {
  const Rows rows(split, acc.o);
  A keep = 1, take = 0;
  if (rows.own()) {
    A* lse = at<A>(acc.lse, rows.head, rows.own_token());
    const A before = *lse, other = *at<A>(in.lse, rows.head, rows.own_token());
    const A top = before > other ? before : other;
    const A w = exp(before - top), w_in = exp(other - top);
    if (other != empty<A> && w_in != 0) {  // else nothing is added and the statistics stay
      keep = w / (w + w_in);
      take = w_in / (w + w_in);
      *lse = top + log(w + w_in);
    }
  }
  blend<X, A, Y, n>(rows, &in.o, acc.o, to, keep, take);
}

template <class A, int n>
__global__ void __launch_bounds__(threads) sink_kernel(View sink, State acc, Split split) {
  const Rows rows(split, acc.o);
  A keep = 1;
  if (rows.own()) {
    A* lse = at<A>(acc.lse, rows.head, rows.own_token());
    const A before = *lse, z = *at<A>(sink, rows.head, 0);
    const A top = before > z ? before : z;
    if (top != empty<A>) {
      const A after = top + log(exp(before - top) + exp(z - top));
      keep = exp(before - after);
      *lse = after;
    }
  }
  blend<A, A, A, n>(rows, nullptr, acc.o, acc.o, keep, A(0));
}

template <class A, int n>
__global__ void __launch_bounds__(threads) reset_kernel(State out, Split split) {
  const Rows rows(split, out.o);
  blend<A, A, A, n>(rows, nullptr, out.o, out.o, A(0), A(0));
  if (rows.own()) *at<A>(out.lse, rows.head, rows.own_token()) = empty<A>;
}

/// The i-th of the numbers in lane i.
template <class A>
__device__ __forceinline__ A own_of(const Rows& rows, const A (&all)[at_once]) {
  A mine = all[0];
#pragma unroll
  for (int r = 1; r < at_once; ++r) mine = rows.lane == r ? all[r] : mine;
  return mine;
}

template <class X, class Y, int n>
__global__ void __launch_bounds__(threads)
    delta_kernel(View o, View grad, View delta, Split split) {
  using A = Sum<X>;
  const Rows rows(split, o);
  const X* x = at<X>(o, rows.token, rows.head);
  const Y* y = at<Y>(grad, rows.token, rows.head);
  A sum[at_once]{};
  for (int64_t c = rows.lane * n; c < o.shape[2]; c += 32 * n) {
    Pack<X, n> a[at_once]{};
    Pack<Y, n> b[at_once]{};
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
      if (r >= rows.count) continue;
      a[r] = *reinterpret_cast<const Pack<X, n>*>(x + r * o.stride[0] + c);
      b[r] = *reinterpret_cast<const Pack<Y, n>*>(y + r * grad.stride[0] + c);
    }
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
#pragma unroll
      for (int e = 0; e < n; ++e) sum[r] += convert<A>(a[r].at[e]) * convert<A>(b[r].at[e]);
    }
  }
#pragma unroll
  for (int r = 0; r < at_once; ++r) sum[r] = warp_sum(sum[r]);
  if (rows.own()) *at<A>(delta, rows.head, rows.own_token()) = own_of(rows, sum);
}

/// o = factor grad of each row, with |grad|^2 in a first pass; the second finds its rows in a
/// cache.
template <class T, int n>
__global__ void __launch_bounds__(threads)
    output_of_delta_kernel(View grad, View delta, View o, Split split) {
  const Rows rows(split, o);
  const T* g = at<T>(grad, rows.token, rows.head);
  T* out = at<T>(o, rows.token, rows.head);
  float square[at_once]{};
  for (int64_t c = rows.lane * n; c < o.shape[2]; c += 32 * n) {
    Pack<T, n> x[at_once]{};
#pragma unroll
    for (int r = 0; r < at_once; ++r)
      if (r < rows.count) x[r] = *reinterpret_cast<const Pack<T, n>*>(g + r * grad.stride[0] + c);
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
#pragma unroll
      for (int e = 0; e < n; ++e)
        square[r] += convert<float>(x[r].at[e]) * convert<float>(x[r].at[e]);
    }
  }
#pragma unroll
  for (int r = 0; r < at_once; ++r) square[r] = warp_sum(square[r]);
  const float mine = own_of(rows, square);
  const float factor =
      rows.own() && mine > 0 ? *at<float>(delta, rows.head, rows.own_token()) / mine : 0;
#pragma unroll
  for (int r = 0; r < at_once; ++r) {
    const float f = __shfl_sync(~0u, factor, r);
    if (r >= rows.count) continue;
    for (int64_t c = rows.lane * n; c < o.shape[2]; c += 32 * n) {
      auto x = *reinterpret_cast<const Pack<T, n>*>(g + r * grad.stride[0] + c);
#pragma unroll
      for (int e = 0; e < n; ++e) x.at[e] = convert<T>(f * convert<float>(x.at[e]));
      *reinterpret_cast<Pack<T, n>*>(out + r * o.stride[0] + c) = x;
    }
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

bool nothing(const View& x) { return x.shape[0] * x.shape[1] * x.shape[2] == 0; }

/// f with an accumulate type, f64 or f32.
template <class F>
cudaError_t visit_sum(Element t, F f) {
  if (t == Element::f64) return f(double{});
  return t == Element::f32 ? f(float{}) : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_merge(const State& in, const State& acc, const View& to, cudaStream_t stream) {
  if (nothing(acc.o)) return cudaSuccess;
  return visit(in.o.type, [&]<class X>(X) {
    using A = Sum<X>;
    if (size_of(acc.o.type) != sizeof(A)) return cudaErrorInvalidValue;
    const auto start = [&]<class Y>(Y) {
      constexpr int n = 16 / sizeof(A);
      const bool wide = fits(in.o, n) && fits(acc.o, n) && fits(to, n);
      const auto kernel = wide ? merge_kernel<X, A, Y, n> : merge_kernel<X, A, Y, 1>;
      const Split split(acc.o);
      kernel<<<split.blocks(acc.o), threads, 0, stream>>>(in, acc, to, split);
      return cudaGetLastError();
    };
    if (to.type == acc.o.type) return start(A{});
    if constexpr (std::is_same_v<X, float>) {
      if (to.type == Element::bf16) return start(bf16{});
      if (to.type == Element::f16) return start(f16{});
    }
    return cudaErrorInvalidValue;
  });
}

cudaError_t launch_output_of_delta(const View& grad, const View& delta, const View& o,
                                   cudaStream_t stream) {
  if (nothing(o)) return cudaSuccess;
  const auto launch = [&]<class T>(T) {
    const bool wide = fits(grad, 4) && fits(o, 4);
    const auto kernel = wide ? output_of_delta_kernel<T, 4> : output_of_delta_kernel<T, 1>;
    const Split split(o);
    kernel<<<split.blocks(o), threads, 0, stream>>>(grad, delta, o, split);
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
      const Split split(o);
      kernel<<<split.blocks(o), threads, 0, stream>>>(o, grad, delta, split);
      return cudaGetLastError();
    });
  });
}

cudaError_t launch_sink(const View& sink, const State& acc, cudaStream_t stream) {
  if (nothing(acc.o)) return cudaSuccess;
  return visit_sum(acc.o.type, [&]<class A>(A) {
    constexpr int n = 16 / sizeof(A);
    const auto kernel = fits(acc.o, n) ? sink_kernel<A, n> : sink_kernel<A, 1>;
    const Split split(acc.o);
    kernel<<<split.blocks(acc.o), threads, 0, stream>>>(sink, acc, split);
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
    const Split split(out.o);
    kernel<<<split.blocks(out.o), threads, 0, stream>>>(out, split);
    return cudaGetLastError();
  });
}

}  // namespace tessera::kernels::cuda

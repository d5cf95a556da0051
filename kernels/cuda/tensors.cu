// SPDX-License-Identifier: Apache-2.0
// tensor.zero, tensor.copy, tensor.add and tensor.sum for any strides and types: bound by memory,
// and for small tensors by the launch, so all pairs of a call share one. Dimensions without gaps
// are joined first; rows that are contiguous and aligned move in pieces of 16 bytes of the wider
// side, which the threads of a warp lay side by side. All this is settled on the host.
#include <algorithm>

#include "kernels/cuda/elements.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int threads = 256;
constexpr int blocks_of_sm = 5;               // 40 KiB and more of an SM are then under way
constexpr int64_t most_elements = INT32_MAX;  // of one move; places in it are 32 bits
constexpr int most_moves = 24;

/// Quotients n / value of n < 2^31 by a product (Granlund and Montgomery, 1994).
struct Divisor {
  uint32_t factor = 1, shift = 0, value = 1;

  Divisor() = default;
  explicit Divisor(uint32_t d) : value(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    factor = static_cast<uint32_t>(((((uint64_t{1} << shift) - d) << 32) / d) + 1);
  }
  __device__ __forceinline__ uint32_t quotient(uint32_t n) const {
    return (__umulhi(n, factor) + n) >> shift;
  }
};

/// Pieces of `width` elements of rows of three dimensions.
struct Pieces {
  Divisor row, middle;  // pieces of a row, rows of the middle dimension
  uint32_t count;
};

struct Strides {
  int64_t at[3];
};

/// Element at which a piece begins in each of some tensors.
struct Position {
  uint32_t i, j, k;

  __device__ __forceinline__ Position(const Pieces& p, uint32_t piece, int width) {
    const uint32_t row = p.row.quotient(piece);
    k = (piece - row * p.row.value) * width;
    i = p.middle.quotient(row);
    j = row - i * p.middle.value;
  }
  __device__ __forceinline__ int64_t in(const Strides& s) const {
    return i * s.at[0] + j * s.at[1] + k * s.at[2];
  }
};

struct Move {
  const void* x;
  void* y;
  Strides x_stride, y_stride;
  Pieces pieces;
  uint32_t first_block;
  Element x_type, y_type;
  bool wide;
};
struct Moves {
  Move move[most_moves];
  int count;
};

/// Drops dimensions of one element and joins those that lie without a gap in all tensors, which
/// are of one shape.
void join(View* v, int count) {
  int at = 3;  // filled from the innermost
  for (int d = 2; d >= 0; --d) {
    const int64_t n = v[0].shape[d];
    if (n == 1) continue;
    const bool dense = at < 3 && std::all_of(v, v + count, [=](const View& x) {
                         return x.stride[d] == x.shape[at] * x.stride[at];
                       });
    if (!dense) --at;
    for (int i = 0; i < count; ++i) {
      if (!dense) v[i].stride[at] = v[i].stride[d];
      v[i].shape[at] = dense ? v[i].shape[at] * n : n;
    }
  }
  for (int i = 0; i < count; ++i) {
    for (int d = 0; d < at; ++d) v[i].shape[d] = 1, v[i].stride[d] = d == 2 ? 1 : 0;
  }
}

int64_t elements(const View& x) { return x.shape[0] * x.shape[1] * x.shape[2]; }

/// Rows of x can be moved in pieces of n elements.
bool fits(const View& x, int64_t n) {
  const int64_t size = size_of(x.type), unit = n * size;
  return x.stride[2] == 1 && x.shape[2] % n == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % unit == 0 && x.stride[0] * size % unit == 0 &&
         x.stride[1] * size % unit == 0;
}

/// Elements of a piece of 16 bytes of the wider of two types.
template <class X, class Y>
constexpr int width_of = 16 / (sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));
int width(Element x, Element y) { return static_cast<int>(16 / std::max(size_of(x), size_of(y))); }

Pieces pieces_of(const View& y, int n) {
  const auto row = static_cast<uint32_t>(y.shape[2] / n);
  return {Divisor(row), Divisor(static_cast<uint32_t>(y.shape[1])),
          static_cast<uint32_t>(elements(y) / n)};
}
Strides strides_of(const View& x) { return {{x.stride[0], x.stride[1], x.stride[2]}}; }

/// The second half of some joined tensors, cut where a piece ends; the views become the first.
void cut(View* v, View* rest, int count, int n) {
  const int d = v[0].shape[0] > 1 ? 0 : v[0].shape[1] > 1 ? 1 : 2;
  const int64_t half = d < 2 ? v[0].shape[d] / 2 : v[0].shape[d] / 2 / n * n;
  for (int i = 0; i < count; ++i) {
    rest[i] = v[i];
    rest[i].shape[d] -= half;
    rest[i].data = static_cast<char*>(v[i].data) + half * v[i].stride[d] * size_of(v[i].type);
    v[i].shape[d] = half;
  }
}

struct Zero {
  static constexpr int at_once = 4;  // pieces that a thread has under way
  static constexpr bool reads_x = false, reads_y = false;
  template <class X, class Y>
  static __device__ Y of(X, Y) {
    return convert<Y>(0.f);
  }
};
struct Copy {
  static constexpr int at_once = 4;
  static constexpr bool reads_x = true, reads_y = false;
  template <class X, class Y>
  static __device__ Y of(X x, Y) {
    return convert<Y>(x);
  }
};
struct Add {
  static constexpr int at_once = 2;
  static constexpr bool reads_x = true, reads_y = true;
  template <class X, class Y>
  static __device__ Y of(X x, Y y) {
    return convert<Y>(convert<Sum<Y>>(y) + convert<Sum<Y>>(x));
  }
};

/// The pieces first, first + threads, .. of a move: all are read before the first is written. A
/// thread without a piece reads the last one, so that no branch holds reads back, and drops it.
template <class F, class X, class Y, int n>
__device__ __forceinline__ void move_pieces(const Move& m, uint32_t first) {
  constexpr int at_once = F::at_once;
  Pack<X, n> from[at_once]{};
  Pack<Y, n> to[at_once]{};
  Y* out[at_once];
#pragma unroll
  for (int p = 0; p < at_once; ++p) {
    const uint32_t piece = first + p * threads, last = m.pieces.count - 1;
    const Position at(m.pieces, piece < last ? piece : last, n);
    out[p] = static_cast<Y*>(m.y) + at.in(m.y_stride);
    if constexpr (F::reads_x)
      from[p] =
          *reinterpret_cast<const Pack<X, n>*>(static_cast<const X*>(m.x) + at.in(m.x_stride));
    if constexpr (F::reads_y) to[p] = *reinterpret_cast<const Pack<Y, n>*>(out[p]);
  }
#pragma unroll
  for (int p = 0; p < at_once; ++p) {
    if (first + p * threads >= m.pieces.count) return;
#pragma unroll
    for (int e = 0; e < n; ++e) to[p].at[e] = F::of(from[p].at[e], to[p].at[e]);
    *reinterpret_cast<Pack<Y, n>*>(out[p]) = to[p];
  }
}

/// f with a value of the element's type; all threads of a block go the same way.
template <class G>
__device__ __forceinline__ void visit_in_kernel(Element t, G f) {
  if (t == Element::f32) return f(float{});
  if (t == Element::bf16) return f(bf16{});
  if (t == Element::f16) return f(f16{});
  f(double{});
}

template <class F>
__global__ void __launch_bounds__(threads, blocks_of_sm)
    move_all(const __grid_constant__ Moves moves) {
  int i = 0;
  while (i + 1 < moves.count && blockIdx.x >= moves.move[i + 1].first_block) ++i;
  const Move& m = moves.move[i];
  const uint32_t first = (blockIdx.x - m.first_block) * (threads * F::at_once) + threadIdx.x;
  const auto go = [&]<class X, class Y>(X, Y) {
    if (m.wide)
      move_pieces<F, X, Y, width_of<X, Y>>(m, first);
    else
      move_pieces<F, X, Y, 1>(m, first);
  };
  visit_in_kernel(m.y_type, [&]<class Y>(Y y) {
    if constexpr (F::reads_x)
      visit_in_kernel(m.x_type, [&]<class X>(X x) { go(x, y); });
    else
      go(y, y);
  });
}

/// Collects moves and launches them together.
template <class F>
class Batch {
 public:
  explicit Batch(cudaStream_t stream) : stream_(stream) {}

  cudaError_t put(const View& x, const View& y) {
    if (elements(x) == 0) return cudaSuccess;
    View pair[] = {x, y};
    join(pair, 2);
    return put_joined(pair);
  }
  cudaError_t launch() {
    if (moves_.count == 0) return cudaSuccess;
    move_all<F><<<blocks_, threads, 0, stream_>>>(moves_);
    moves_.count = 0;
    blocks_ = 0;
    return cudaGetLastError();
  }

 private:
  cudaError_t put_joined(View (&v)[2]) {
    const int n = width(v[0].type, v[1].type);
    const bool wide = fits(v[0], n) && fits(v[1], n);
    if (elements(v[0]) > most_elements) {
      View rest[2];
      cut(v, rest, 2, n);
      const cudaError_t code = put_joined(v);
      return code == cudaSuccess ? put_joined(rest) : code;
    }
    if (moves_.count == most_moves) {
      const cudaError_t code = launch();
      if (code != cudaSuccess) return code;
    }
    const Pieces pieces = pieces_of(v[1], wide ? n : 1);
    moves_.move[moves_.count++] = {v[0].data,        v[1].data, strides_of(v[0]),
                                   strides_of(v[1]), pieces,    blocks_,
                                   v[0].type,        v[1].type, wide};
    blocks_ += (pieces.count - 1) / (threads * F::at_once) + 1;
    return cudaSuccess;
  }

  cudaStream_t stream_;
  Moves moves_{};
  uint32_t blocks_ = 0;
};

template <class F>
cudaError_t run(std::span<const Pair> pairs, cudaStream_t stream) {
  Batch<F> batch(stream);
  for (const Pair& p : pairs) {
    const cudaError_t code = batch.put(p.x, p.y);
    if (code != cudaSuccess) return code;
  }
  return batch.launch();
}

struct Term {
  const void* x;
  Strides stride;
};
struct Terms {
  Term term[most_terms];
  int count;
  void* y;
  Strides y_stride;
  Pieces pieces;
};

constexpr int sums_at_once = 2;   // pieces of a thread, one after the other
constexpr int terms_at_once = 4;  // loads under way for a piece

template <class X, class Y, int n>
__global__ void __launch_bounds__(threads) sum_all(const __grid_constant__ Terms terms) {
  using A = Sum<Y>;
#pragma unroll
  for (int p = 0; p < sums_at_once; ++p) {
    const uint32_t piece = (blockIdx.x * sums_at_once + p) * threads + threadIdx.x;
    if (piece >= terms.pieces.count) return;
    const Position at(terms.pieces, piece, n);
    A sum[n];
#pragma unroll
    for (int e = 0; e < n; ++e) sum[e] = A(-0.0);  // which any number, -0 too, comes through
    for (int first = 0; first < terms.count; first += terms_at_once) {
      Pack<X, n> from[terms_at_once];
#pragma unroll
      for (int t = 0; t < terms_at_once; ++t) {
        if (first + t >= terms.count) break;
        const Term& term = terms.term[first + t];
        from[t] = *reinterpret_cast<const Pack<X, n>*>(static_cast<const X*>(term.x) +
                                                       at.in(term.stride));
      }
#pragma unroll
      for (int t = 0; t < terms_at_once; ++t) {
        if (first + t >= terms.count) break;
#pragma unroll
        for (int e = 0; e < n; ++e) sum[e] += convert<A>(from[t].at[e]);
      }
    }
    Pack<Y, n> out;
#pragma unroll
    for (int e = 0; e < n; ++e) out.at[e] = convert<Y>(sum[e]);
    *reinterpret_cast<Pack<Y, n>*>(static_cast<Y*>(terms.y) + at.in(terms.y_stride)) = out;
  }
}

/// The sum of joined views, the last of which is the result.
cudaError_t sum_joined(View* v, int count, cudaStream_t stream) {
  const View& y = v[count - 1];
  const int n = width(v[0].type, y.type);
  const bool wide = std::all_of(v, v + count, [=](const View& x) { return fits(x, n); });
  if (elements(y) > most_elements) {
    View rest[most_terms + 1];
    cut(v, rest, count, n);
    const cudaError_t code = sum_joined(v, count, stream);
    return code == cudaSuccess ? sum_joined(rest, count, stream) : code;
  }
  Terms terms{};
  for (int i = 0; i + 1 < count; ++i) terms.term[i] = {v[i].data, strides_of(v[i])};
  terms.count = count - 1;
  terms.y = y.data;
  terms.y_stride = strides_of(y);
  terms.pieces = pieces_of(y, wide ? n : 1);
  const uint32_t blocks = (terms.pieces.count - 1) / (sums_at_once * threads) + 1;
  return visit(v[0].type, [&]<class X>(X) {
    return visit(y.type, [&]<class Y>(Y) {
      const auto kernel = wide ? sum_all<X, Y, width_of<X, Y>> : sum_all<X, Y, 1>;
      kernel<<<blocks, threads, 0, stream>>>(terms);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t launch_zero(std::span<const View> x, cudaStream_t stream) {
  Batch<Zero> batch(stream);
  for (const View& v : x) {
    const cudaError_t code = batch.put(v, v);
    if (code != cudaSuccess) return code;
  }
  return batch.launch();
}

cudaError_t launch_copy(std::span<const Pair> pairs, cudaStream_t stream) {
  return run<Copy>(pairs, stream);
}

cudaError_t launch_add(std::span<const Pair> pairs, cudaStream_t stream) {
  return run<Add>(pairs, stream);
}

cudaError_t launch_sum(std::span<const View> terms, const View& y, cudaStream_t stream) {
  if (terms.empty() || terms.size() > most_terms) return cudaErrorInvalidValue;
  if (elements(y) == 0) return cudaSuccess;
  View v[most_terms + 1];
  std::copy(terms.begin(), terms.end(), v);
  v[terms.size()] = y;
  const int count = static_cast<int>(terms.size()) + 1;
  join(v, count);
  return sum_joined(v, count, stream);
}

}  // namespace tessera::kernels::cuda

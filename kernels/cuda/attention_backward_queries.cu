// SPDX-License-Identifier: Apache-2.0
// dQ of a bf16 or f16 tile with any mask, given the final statistics (attention brief 1.3). A block
// owns 128 queries of one head and runs over the blocks of keys that they see, so that every
// element of dq has one owner and the result is the same in every run. dQ of a block of keys is
// multiplied while the scores of the next block are.
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/operands.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int queries = 128;
constexpr int consumers = 2 * group_threads;
constexpr int threads = consumers + group_threads;

template <int D, int DV>
struct Shape {
  static constexpr int keys = D > 192 ? 32 : 64;
  static constexpr int stages = D > 128 ? 2 : 3;
  static constexpr int q_bytes = tile_bytes<D, queries>;
  static constexpr int g_bytes = tile_bytes<DV, queries>;
  static constexpr int k_bytes = tile_bytes<D, keys>;
  static constexpr int v_bytes = tile_bytes<DV, keys>;
  static constexpr int barriers = q_bytes + g_bytes + stages * (k_bytes + v_bytes);
  static constexpr int bytes = barriers + 128 + 1024;
  static_assert(bytes <= 232448, "shared memory of a Hopper block");
};

template <int D, int DV>
struct Shared {
  using S = Shape<D, DV>;
  char* base;
  __device__ explicit Shared(char* raw)
      : base(raw + (1024 - (shared_address(raw) & 1023)) % 1024) {}
  __device__ char* q() const { return base; }
  __device__ char* g() const { return base + S::q_bytes; }
  __device__ char* k(int stage) const {
    return base + S::q_bytes + S::g_bytes + stage * S::k_bytes;
  }
  __device__ char* v(int stage) const { return k(S::stages) + stage * S::v_bytes; }
  __device__ uint64_t* barrier(int i) const {
    return reinterpret_cast<uint64_t*>(base + S::barriers) + i;
  }
  __device__ uint64_t* resident() const { return barrier(0); }
  __device__ uint64_t* full(int stage) const { return barrier(1 + stage); }
  __device__ uint64_t* free(int stage) const { return barrier(1 + S::stages + stage); }
};

template <int D, int DV>
__device__ void fetch(const BackwardParams& p, const Shared<D, DV>& mem, int row, int head,
                      int begin, int end) {
  using S = Shape<D, DV>;
  const int key_head = head / p.tile.group;
  barrier_expect(mem.resident(), S::q_bytes + S::g_bytes);
  load_tile<D, queries>(mem.q(), &p.q, mem.resident(), head, row);
  load_tile<DV, queries>(mem.g(), &p.grad, mem.resident(), head, row);
  for (int i = begin; i < end; ++i) {
    const int stage = (i - begin) % S::stages, turn = (i - begin) / S::stages & 1;
    const int key = p.tile.tiles.entries[i].col;
    barrier_wait(mem.free(stage), turn ^ 1);
    barrier_expect(mem.full(stage), S::k_bytes + S::v_bytes);
    load_tile<D, S::keys>(mem.k(stage), &p.k, mem.full(stage), key_head, key);
    load_tile<DV, S::keys>(mem.v(stage), &p.v, mem.full(stage), key_head, key);
  }
}

template <class E, int D, int DV, bool capped>
struct Consumer {
  using S = Shape<D, DV>;
  static constexpr int n = S::keys / 2;
  const BackwardParams& p;
  const Shared<D, DV>& mem;
  int block_row, row_end, row, head, first_column;
  /// lse in powers of two, +inf where there is no gradient; scale Delta.
  float lse[2], delta[2];
  float s[n], t[n], dq[D / 2];
  /// Q and dO are kept in registers where these suffice: reading them from shared memory for every
  /// product would take as long as the products.
  static constexpr bool in_registers = D + DV <= 256 && !capped;
  uint32_t q_fragments[in_registers ? D / 4 : 1], g_fragments[in_registers ? DV / 4 : 1];
  uint32_t fragments[S::keys / 4];

  __device__ __forceinline__ void statistics() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int q = row + 8 * r;
      lse[r] = INFINITY;
      delta[r] = 0;
      if (q >= p.tile.rows) continue;
      const float x = p.lse[head * p.lse_stride[0] + q * p.lse_stride[1]];
      lse[r] = x == -INFINITY ? INFINITY : x * log2_e;
      const float y = p.delta[head * p.delta_stride[0] + q * p.delta_stride[1]];
      delta[r] = x == -INFINITY ? 0 : p.tile.scale * y;
    }
  }
  __device__ __forceinline__ void scores(int stage) {
    const uint32_t half = warpgroup() * 64 * panel_bytes;
    products_begin();
    if constexpr (in_registers) {
      product_fbt<E, D, S::keys>(s, q_fragments, shared_address(mem.k(stage)));
    } else {
      product_abt<E, D, queries, S::keys>(s, shared_address(mem.q()) + half,
                                          shared_address(mem.k(stage)));
    }
    products_commit();
    if constexpr (in_registers) {
      product_fbt<E, DV, S::keys>(t, g_fragments, shared_address(mem.v(stage)));
    } else {
      product_abt<E, DV, queries, S::keys>(t, shared_address(mem.g()) + half,
                                           shared_address(mem.v(stage)));
    }
    products_commit();
  }
  __device__ __forceinline__ void load_resident() {
    if constexpr (in_registers) {
      const uint32_t first = threadIdx.x / 32 * 16 * panel_bytes;  // of this warp's 16 rows
      load_fragments<D, queries>(shared_address(mem.q()) + first, q_fragments);
      load_fragments<DV, queries>(shared_address(mem.g()) + first, g_fragments);
    }
  }
  __device__ __forceinline__ void gradient(const TileEntry& e, int stage) {
    if (e.flags & tile_holes) {
      clear_holes<S::keys, (D + 63) / 64, consumers>(p.tile.tiles, e, block_row, row_end,
                                                     mem.k(stage));
    }
    products_begin();
    product_pb<E, S::keys>(dq, fragments, shared_address(mem.k(stage)));
    products_commit();
  }
  /// Scores become probabilities; with a cap, `slope` is its derivative.
  __device__ __forceinline__ void probabilities(float (&slope)[capped ? n : 1]) {
    const float scale = p.tile.scale * log2_e, cap = p.tile.softcap;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if constexpr (capped) {
        const float x = tanh_fast(s[i] * p.tile.scale / cap);
        slope[i] = 1 - x * x;
        s[i] = x * cap / p.tile.scale;
      }
      s[i] = exp2_fast(s[i] * scale - lse[i / 2 % 2]);
    }
  }
  /// With t = dO V^T, s becomes scale times the gradient of the scores.
  __device__ __forceinline__ void score_gradient(const TileEntry& e,
                                                 const float (&slope)[capped ? n : 1]) {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      s[i] *= p.tile.scale * t[i] - delta[i / 2 % 2];
      if constexpr (capped) s[i] *= slope[i];
    }
    if (e.flags & tile_partial) {
      uint32_t bits[2];
      visible_cells<n>(p.tile.tiles.bands + e.band_begin, e.band_count, row, e.col + first_column,
                       bits);
#pragma unroll
      for (int i = 0; i < n; ++i) s[i] = is_visible(bits, i) ? s[i] : 0;
    }
  }
  __device__ __forceinline__ void release(int stage) {
    if (threadIdx.x % 32 == 0) barrier_arrive(mem.free(stage));
  }
  __device__ float* row_of_dq(int r) const {
    return p.dq + (row + 8 * r) * p.dq_stride[0] + head * p.dq_stride[1] + first_column;
  }
  __device__ void store() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r < row_end) write_row(row_of_dq(r), dq, r, 1);
    }
  }

  __device__ void run(int begin, int end) {
    const TileEntry* entries = p.tile.tiles.entries;
    statistics();
#pragma unroll
    for (int r = 0; r < 2; ++r) read_row(dq, row_of_dq(r), r, !p.fresh_dq && row + 8 * r < row_end);
    barrier_wait(mem.resident(), 0);
    load_resident();
    TileEntry e = entries[begin];
    float slope[capped ? n : 1];
    for (int i = 0; i < end - begin; ++i) {
      const TileEntry before = e;
      if (i > 0) e = entries[begin + i];
      const int stage = i % S::stages, last = (i + S::stages - 1) % S::stages;
      barrier_wait(mem.full(stage), i / S::stages & 1);
      scores(stage);
      if (i > 0) {
        gradient(before, last);
        products_wait<2>();
      } else {
        products_wait<1>();
      }
      pin(s);
      probabilities(slope);
      products_wait<0>();
      pin(t);
      pin(dq);
      if (i > 0) release(last);
      score_gradient(e, slope);
      to_fragments<E>(s, fragments);
    }
    gradient(e, (end - begin - 1) % S::stages);
    products_wait<0>();
    pin(dq);
    store();
  }
};

template <class E, int D, int DV, bool capped>
__global__ void __launch_bounds__(threads, 1)
    backward_queries_kernel(const __grid_constant__ BackwardParams p) {
  using S = Shape<D, DV>;
  extern __shared__ char raw[];
  const Shared<D, DV> mem(raw);
  const Item item = item_of(p.tile, static_cast<int>(blockIdx.x));
  if (threadIdx.x == 0) {
    barrier_init(mem.resident(), 1);
    for (int s = 0; s < S::stages; ++s) {
      barrier_init(mem.full(s), 1);
      barrier_init(mem.free(s), consumers / 32);
    }
    barriers_ready();
  }
  __syncthreads();
  if (threadIdx.x >= consumers) {
    give_registers<24>();
    if (threadIdx.x == consumers) fetch(p, mem, item.row, item.head, item.begin, item.end);
  } else {
    take_registers<240>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Consumer<E, D, DV, capped> c{
        p, mem, item.row, item.row_end, item.row + warp * 16 + lane / 4, item.head, lane % 4 * 2};
    c.run(item.begin, item.end);
  }
}

template <class E, int D, int DV>
cudaError_t launch(const BackwardParams& p, cudaStream_t stream) {
  const auto kernel = p.tile.softcap > 0 ? backward_queries_kernel<E, D, DV, true>
                                         : backward_queries_kernel<E, D, DV, false>;
  return start_kernel(kernel, p.tile.items, threads, Shape<D, DV>::bytes, p, stream);
}

}  // namespace

TileShape backward_query_tile(int d, int dv) {
  return {forward_tile(d, dv).resident, d > 192 ? 32 : 64};
}

cudaError_t launch_backward_queries(const BackwardParams& p, Operands x, cudaStream_t stream) {
  if (p.tile.tiles.blocks == 0) return cudaSuccess;
  return with_operands(x, [&]<class E, int D, int DV>() { return launch<E, D, DV>(p, stream); });
}

}  // namespace tessera::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
// dK and dV of a bf16 or f16 tile with any mask, given the final statistics (attention brief 1.3).
// A block owns 128 keys of one key head and runs over the blocks of queries that see them, for each
// query head of the group: every element has one owner, the result is the same in every run. Head
// sizes above 128 need two launches, one for dV and one for dK, for want of registers.
#include "kernels/cuda/attention_backward_keys.cuh"
#include "kernels/cuda/operands.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int keys = block_keys, consumers = key_consumers, threads = key_threads;

template <int D, int DV>
struct Shape {
  static constexpr int queries = D > 192 ? 32 : 64;
  static constexpr int stages = 3;
  static constexpr int k_bytes = tile_bytes<D, keys>;
  static constexpr int v_bytes = tile_bytes<DV, keys>;
  static constexpr int q_bytes = tile_bytes<D, queries>;
  static constexpr int g_bytes = tile_bytes<DV, queries>;
  static constexpr int statistics = k_bytes + v_bytes + stages * (q_bytes + g_bytes);
  static constexpr int barriers = statistics + stages * 2 * queries * 4;
  static constexpr int bytes = barriers + 128 + 1024;
  static_assert(bytes <= 232448, "shared memory of a Hopper block");
};

template <int D, int DV>
struct Shared {
  using S = Shape<D, DV>;
  char* base;
  __device__ explicit Shared(char* raw)
      : base(raw + (1024 - (shared_address(raw) & 1023)) % 1024) {}
  __device__ char* k() const { return base; }
  __device__ char* v() const { return base + S::k_bytes; }
  __device__ char* q(int stage) const { return v() + S::v_bytes + stage * S::q_bytes; }
  __device__ char* g(int stage) const { return q(S::stages) + stage * S::g_bytes; }
  __device__ float* lse(int stage) const {
    return reinterpret_cast<float*>(base + S::statistics) + stage * 2 * S::queries;
  }
  __device__ float* delta(int stage) const { return lse(stage) + S::queries; }
  __device__ uint64_t* barrier(int i) const {
    return reinterpret_cast<uint64_t*>(base + S::barriers) + i;
  }
  __device__ uint64_t* resident() const { return barrier(0); }
  __device__ uint64_t* full(int stage) const { return barrier(1 + stage); }
  __device__ uint64_t* free(int stage) const { return barrier(1 + S::stages + stage); }
};

/// One warp: lane 0 drives the copy engine, all lanes fetch the statistics.
template <int D, int DV>
__device__ void fetch(const BackwardParams& p, const Shared<D, DV>& mem, int key, int key_head,
                      int begin, int end) {
  using S = Shape<D, DV>;
  const bool leader = threadIdx.x % 32 == 0;
  if (leader) {
    barrier_expect(mem.resident(), S::k_bytes + S::v_bytes);
    load_tile<D, keys>(mem.k(), &p.k, mem.resident(), key_head, key);
    load_tile<DV, keys>(mem.v(), &p.v, mem.resident(), key_head, key);
  }
  const int steps = end - begin;
  for (int i = 0; i < steps * p.tile.group; ++i) {
    const int stage = i % S::stages, turn = i / S::stages & 1;
    const int head = key_head * p.tile.group + i / steps;
    const int row = p.tile.tiles.entries[begin + i % steps].col;
    barrier_wait(mem.free(stage), turn ^ 1);
    if (leader) {
      barrier_expect(mem.full(stage), S::q_bytes + S::g_bytes);
      load_tile<D, S::queries>(mem.q(stage), &p.q, mem.full(stage), head, row);
      load_tile<DV, S::queries>(mem.g(stage), &p.grad, mem.full(stage), head, row);
    }
    fetch_statistics<S::queries>(p, mem.lse(stage), mem.delta(stage), row, head);
    __syncwarp();  // the leader arrived before it wrote its statistics
    if (!leader) barrier_arrive(mem.full(stage));
  }
}

template <class E, int D, int DV, bool want_dk, bool want_dv, bool capped>
struct Consumer : KeyScores<Shape<D, DV>::queries, capped> {
  using S = Shape<D, DV>;
  using Base = KeyScores<S::queries, capped>;
  using Base::end_key, Base::n, Base::s, Base::t, Base::probabilities, Base::read_statistics,
      Base::score_gradient, Base::resume, Base::store;
  const BackwardParams& p;
  const Shared<D, DV>& mem;
  int block_key, head;
  float dk[want_dk ? D / 2 : 2], dv[want_dv ? DV / 2 : 2];
  uint32_t weights[n / 2], slopes[n / 2];  ///< P^T and dS^T as operands

  __device__ Consumer(const BackwardParams& p, const Shared<D, DV>& mem, const Item& item)
      : Base{p.tile, item.row + static_cast<int>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4),
             item.row_end, static_cast<int>(threadIdx.x % 4 * 2)},
        p(p),
        mem(mem),
        block_key(item.row),
        head(item.head) {}

  /// Registers suffice for scores and the operands of the step before at one time.
  static constexpr bool roomy = !want_dk || !want_dv || D <= 96;

  __device__ __forceinline__ void scores(int stage) {
    const uint32_t half = warpgroup() * 64 * panel_bytes;
    products_begin();
    product_abt<E, D, keys, S::queries>(s, shared_address(mem.k()) + half,
                                        shared_address(mem.q(stage)));
    products_commit();
  }
  __device__ __forceinline__ void score_slopes(int stage) {
    if constexpr (!want_dk) return;
    const uint32_t half = warpgroup() * 64 * panel_bytes;
    products_begin();
    product_abt<E, DV, keys, S::queries>(t, shared_address(mem.v()) + half,
                                         shared_address(mem.g(stage)));
    products_commit();
  }
  __device__ __forceinline__ void clear(const TileEntry& e, int stage) {
    clear_holes<S::queries, (D + 63) / 64, consumers>(p.tile.tiles, e, block_key, end_key,
                                                      mem.q(stage));
    clear_holes<S::queries, (DV + 63) / 64, consumers>(p.tile.tiles, e, block_key, end_key,
                                                       mem.g(stage));
  }
  __device__ __forceinline__ void release(int stage) {
    if (threadIdx.x % 32 == 0) barrier_arrive(mem.free(stage));
  }
  __device__ __forceinline__ void gradients(int stage) {
    products_begin();
    if constexpr (want_dv) {
      product_pb<E, S::queries>(dv, weights, shared_address(mem.g(stage)));
      products_commit();
    }
    if constexpr (want_dk) {
      product_pb<E, S::queries>(dk, slopes, shared_address(mem.q(stage)));
      products_commit();
    }
  }
  /// Operands of the gradients, made while no product is under way: the compiler serialises
  /// products otherwise.
  __device__ __forceinline__ void operands(const TileEntry& e, int stage) {
    if constexpr (want_dv) to_fragments<E>(s, weights);
    if constexpr (want_dk) {
      pin(t);
      float delta[n / 2];
      read_statistics(mem.delta(stage), delta);
      score_gradient(e, mem.lse(stage), delta);
      to_fragments<E>(s, slopes);
    }
  }
  /// Where registers suffice, the scores of step i are put before the gradients of step i - 1, so
  /// that these are under way while the probabilities of i are worked out.
  __device__ void run(int begin, int end) {
    if constexpr (want_dv) resume(dv, p.dv, p.dv_stride, head, p.fresh_dv);
    barrier_wait(mem.resident(), 0);
    const int steps = end - begin, total = steps * p.tile.group;
    const TileEntry* entries = p.tile.tiles.entries + begin;
    int at = steps > 1 ? 1 : 0;  // of the entry after this one, fetched a step ahead
    TileEntry e = entries[0], next = entries[at];
    barrier_wait(mem.full(0), 0);
    if (e.flags & tile_holes) clear(e, 0);
    scores(0);
    score_slopes(0);
    float lse[n / 2];
    read_statistics(mem.lse(0), lse);
    products_wait<0>();
    pin(s);
    probabilities(e, lse);
    operands(e, 0);
    if constexpr (want_dk) resume(dk, p.dk, p.dk_stride, head, p.fresh_dk);
    for (int i = 1; i < total; ++i) {
      const int stage = i % S::stages, last = (i - 1) % S::stages;
      e = next;
      at = at + 1 < steps ? at + 1 : 0;
      next = entries[at];
      barrier_wait(mem.full(stage), i / S::stages & 1);
      if (e.flags & tile_holes) clear(e, stage);
      read_statistics(mem.lse(stage), lse);
      if constexpr (roomy) {
        scores(stage);
        score_slopes(stage);
        gradients(last);
        products_wait<(want_dk ? 2 : 0) + (want_dv ? 1 : 0)>();
      } else {
        gradients(last);
        scores(stage);
        products_wait<1>();
        score_slopes(stage);
        products_wait<1>();
      }
      pin(s);
      probabilities(e, lse);
      products_wait<0>();
      pin(dk);
      pin(dv);
      release(last);
      operands(e, stage);
    }
    gradients((total - 1) % S::stages);
    products_wait<0>();
    pin(dk);
    pin(dv);
    if constexpr (want_dk) store(dk, p.dk, p.dk_stride, head);
    if constexpr (want_dv) store(dv, p.dv, p.dv_stride, head);
  }
};

template <class E, int D, int DV, bool want_dk, bool want_dv, bool capped>
__global__ void __launch_bounds__(threads, 1)
    backward_keys_kernel(const __grid_constant__ BackwardParams p) {
  using S = Shape<D, DV>;
  extern __shared__ char raw[];
  const Shared<D, DV> mem(raw);
  const Item item = item_of(p.tile, static_cast<int>(blockIdx.x));
  if (threadIdx.x == 0) {
    barrier_init(mem.resident(), 1);
    for (int s = 0; s < S::stages; ++s) {
      barrier_init(mem.full(s), 32);
      barrier_init(mem.free(s), consumers / 32);
    }
    barriers_ready();
  }
  __syncthreads();
  if (threadIdx.x >= consumers) {
    give_registers<24>();
    if (threadIdx.x < consumers + 32) fetch(p, mem, item.row, item.head, item.begin, item.end);
  } else {
    take_registers<240>();
    Consumer<E, D, DV, want_dk, want_dv, capped> c(p, mem, item);
    c.run(item.begin, item.end);
  }
}

template <class E, int D, int DV, bool want_dk, bool want_dv>
cudaError_t launch(const BackwardParams& p, cudaStream_t stream) {
  const auto kernel = p.tile.softcap > 0 ? backward_keys_kernel<E, D, DV, want_dk, want_dv, true>
                                         : backward_keys_kernel<E, D, DV, want_dk, want_dv, false>;
  return start_kernel(kernel, p.tile.items, threads, Shape<D, DV>::bytes, p, stream);
}

template <class E, int D, int DV>
cudaError_t launch_both(const BackwardParams& p, cudaStream_t stream) {
  if constexpr (D <= 128) {
    return launch<E, D, DV, true, true>(p, stream);
  } else {
    const cudaError_t first = launch<E, D, DV, false, true>(p, stream);
    return first != cudaSuccess ? first : launch<E, D, DV, true, false>(p, stream);
  }
}

}  // namespace

TileShape backward_key_tile(int d, int dv) {
  return {forward_tile(d, dv).resident ? keys : 0, d > 192 ? 32 : 64};
}

cudaError_t launch_backward_keys(const BackwardParams& p, Operands x, cudaStream_t stream) {
  if (p.tile.tiles.blocks == 0) return cudaSuccess;
  return with_operands(x,
                       [&]<class E, int D, int DV>() { return launch_both<E, D, DV>(p, stream); });
}

}  // namespace tessera::kernels::cuda

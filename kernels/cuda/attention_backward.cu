// SPDX-License-Identifier: Apache-2.0
// dQ, dK and dV of a bf16 or f16 tile with any mask in one pass (attention brief 1.3): 5 products
// for a block of scores where the two kernels of one owner for each element need 7. A thread block
// draws items of 128 keys of one key head and runs over the blocks of queries that see them, for
// each query head of the group. dS^T goes through shared memory, as operand of dK and of dQ, of
// which each warpgroup makes half of the columns; the copy engine adds them to memory, after the
// scheme of FlashAttention-3 (arXiv 2407.08608, section 3): blocks of keys add in any order, so
// that the last bits of dQ differ from run to run.
#include "kernels/cuda/attention_backward_keys.cuh"
#include "kernels/cuda/operands.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int keys = block_keys, consumers = key_consumers, threads = key_threads;
constexpr int queries = 64;

/// Half of the columns of dQ are one operand.
constexpr bool has_kernel(int d, int dv) { return d == dv && (d == 64 || d == 128); }

template <int D>
struct Shape {
  static_assert(has_kernel(D, D));
  static constexpr int stages = 3;
  static constexpr int k_bytes = tile_bytes<D, keys>;
  static constexpr int q_bytes = tile_bytes<D, queries>;
  static constexpr int slopes_bytes = tile_bytes<queries, keys>;
  static constexpr int half_bytes = queries * D / 2 * 4;  ///< of dQ
  static constexpr int slopes = 2 * k_bytes + stages * 2 * q_bytes;
  static constexpr int sums = slopes + 2 * slopes_bytes;
  static constexpr int statistics = sums + 2 * half_bytes;
  static constexpr int barriers = statistics + stages * 2 * queries * 4;
  static constexpr int bytes = barriers + 192 + 1024;
  static_assert(bytes <= 232448, "shared memory of a Hopper block");
};

/// Where a warpgroup's part of dQ is added.
struct Target {
  int row, head;
};

template <int D>
struct Shared {
  using S = Shape<D>;
  char* base;
  __device__ explicit Shared(char* raw)
      : base(raw + (1024 - (shared_address(raw) & 1023)) % 1024) {}
  __device__ char* k() const { return base; }
  __device__ char* v() const { return base + S::k_bytes; }
  __device__ char* q(int stage) const { return base + 2 * S::k_bytes + stage * S::q_bytes; }
  __device__ char* g(int stage) const { return q(S::stages) + stage * S::q_bytes; }
  __device__ char* slopes(int turn) const { return base + S::slopes + turn * S::slopes_bytes; }
  __device__ char* sums(int group) const { return base + S::sums + group * S::half_bytes; }
  __device__ float* lse(int stage) const {
    return reinterpret_cast<float*>(base + S::statistics) + stage * 2 * queries;
  }
  __device__ float* delta(int stage) const { return lse(stage) + queries; }
  __device__ uint64_t* barrier(int i) const {
    return reinterpret_cast<uint64_t*>(base + S::barriers) + i;
  }
  __device__ uint64_t* full(int stage) const { return barrier(stage); }
  __device__ uint64_t* free(int stage) const { return barrier(S::stages + stage); }
  __device__ uint64_t* shared_slopes(int turn) const { return barrier(2 * S::stages + turn); }
  __device__ uint64_t* resident_full() const { return barrier(2 * S::stages + 2); }
  __device__ uint64_t* resident_free() const { return barrier(2 * S::stages + 3); }
  __device__ uint64_t* drawn() const { return barrier(2 * S::stages + 4); }
  __device__ uint64_t* sums_full(int group) const { return barrier(2 * S::stages + 5 + group); }
  __device__ uint64_t* sums_free(int group) const { return barrier(2 * S::stages + 7 + group); }
  /// Of two in turn, so that consumers may look at theirs until they are done with it.
  __device__ Item& item(int n) const { return reinterpret_cast<Item*>(barrier(16))[n & 1]; }
  __device__ Target& target(int group) const {
    return reinterpret_cast<Target*>(barrier(21))[group];
  }
};

/// The blocks of queries of one item, and of all query heads of its key head.
template <int D>
__device__ __forceinline__ void fetch_queries(const BackwardParams& p, const Shared<D>& mem,
                                              const Item& item, int& step) {
  using S = Shape<D>;
  const bool leader = threadIdx.x % 32 == 0;
  const int first = item.head * p.tile.group;
  for (int head = first; head < first + p.tile.group; ++head) {
    for (int i = item.begin; i < item.end; ++i, ++step) {
      const int stage = step % S::stages, row = p.tile.tiles.entries[i].col;
      barrier_wait(mem.free(stage), step / S::stages & 1 ^ 1);
      if (leader) {
        barrier_expect(mem.full(stage), 2 * S::q_bytes);
        load_tile<D, queries>(mem.q(stage), &p.q, mem.full(stage), head, row);
        load_tile<D, queries>(mem.g(stage), &p.grad, mem.full(stage), head, row);
      }
      fetch_statistics<queries>(p, mem.lse(stage), mem.delta(stage), row, head);
      __syncwarp();  // the leader has arrived before: its part is there when the others arrive
      if (!leader) barrier_arrive(mem.full(stage));
    }
  }
}

/// One warp: lane 0 draws items and drives the copy engine, all lanes fetch the statistics.
template <int D>
__device__ void fetch(const BackwardParams& p, const Shared<D>& mem) {
  using S = Shape<D>;
  const bool leader = threadIdx.x % 32 == 0;
  for (int n = 0, step = 0;; ++n) {
    if (leader) {
      const Item drawn = draw(p.tile, n);
      barrier_wait(mem.resident_free(), n & 1 ^ 1);
      mem.item(n) = drawn;
      barrier_arrive(mem.drawn());
    }
    barrier_wait(mem.drawn(), n & 1);
    const Item item = mem.item(n);
    if (item.head < 0) break;
    if (leader) {
      barrier_expect(mem.resident_full(), 2 * S::k_bytes);
      load_tile<D, keys>(mem.k(), &p.k, mem.resident_full(), item.head, item.row);
      load_tile<D, keys>(mem.v(), &p.v, mem.resident_full(), item.head, item.row);
    }
    fetch_queries(p, mem, item, step);
  }
  if (leader) leave(p.tile);
}

/// One thread for each warpgroup: adds what it hands over to dq, until a head below 0.
template <int D>
__device__ void send(const BackwardParams& p, const Shared<D>& mem, int group) {
  for (int n = 0;; ++n) {
    barrier_wait(mem.sums_full(group), n & 1);
    const Target to = mem.target(group);
    if (to.head < 0) break;
#pragma unroll
    for (int c = 0; c < D / 2; c += 32) {
      add_panel(&p.dq_sums, mem.sums(group) + c * queries * 4, group * D / 2 + c, to.head, to.row);
    }
    panels_commit();
    panels_read();
    barrier_arrive(mem.sums_free(group));
  }
  panels_done();
}

template <class E, int D, bool capped>
struct Consumer : KeyScores<queries, capped> {
  using S = Shape<D>;
  using Base = KeyScores<queries, capped>;
  using Base::n, Base::s, Base::t, Base::first_column, Base::probabilities, Base::read_statistics,
      Base::score_gradient, Base::resume, Base::store;
  const BackwardParams& p;
  const Shared<D>& mem;
  int number;  ///< of the item
  float dk[D / 2], dv[D / 2];
  float dq[D / 4];          ///< this warpgroup's columns of a block of queries
  uint32_t weights[n / 2];  ///< P^T as an operand

  __device__ Consumer(const BackwardParams& p, const Shared<D>& mem, int number)
      : Base{p.tile,
             mem.item(number).row + static_cast<int>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4),
             mem.item(number).row_end, static_cast<int>(threadIdx.x % 4 * 2)},
        p(p),
        mem(mem),
        number(number) {}

  __device__ __forceinline__ void scores(int stage) {
    products_begin();
    product_abt<E, D, keys, queries>(s, shared_address(mem.k()) + warpgroup() * 64 * panel_bytes,
                                     shared_address(mem.q(stage)));
    products_commit();
  }
  __device__ __forceinline__ void score_slopes(int stage) {
    products_begin();
    product_abt<E, D, keys, queries>(t, shared_address(mem.v()) + warpgroup() * 64 * panel_bytes,
                                     shared_address(mem.g(stage)));
    products_commit();
  }
  __device__ __forceinline__ void value_gradient(int stage) {
    products_begin();
    product_pb<E, queries>(dv, weights, shared_address(mem.g(stage)));
    products_commit();
  }
  __device__ __forceinline__ void key_gradient(int step) {
    products_begin();
    product_ab<E, keys, queries>(
        dk, shared_address(mem.slopes(step % 2)) + warpgroup() * 64 * panel_bytes,
        shared_address(mem.q(step % S::stages)));
    products_commit();
  }
  /// dQ (64 x D / 2) = dS K.
  __device__ __forceinline__ void query_gradient(int step) {
    constexpr int half = D / 2 == panel ? keys * panel_bytes : D / 2 * 2;
    barrier_wait(mem.shared_slopes(step % 2), step / 2 & 1);
    products_begin();
    product_atb<E, keys>(dq, shared_address(mem.slopes(step % 2)),
                         shared_address(mem.k()) + warpgroup() * half);
    products_commit();
  }
  /// dS^T of this warp's keys for both warpgroups. There are two tiles in turn: a warpgroup that
  /// shares step i has met the slopes of i - 1, which the other shared when its products of i - 2
  /// had been made.
  __device__ __forceinline__ void share_slopes(const TileEntry& e, const float (&delta)[n / 2],
                                               int step) {
    const int stage = step % S::stages, turn = step % 2;
    uint32_t slopes[n / 2];
    pin(t);
    score_gradient(e, mem.lse(stage), delta);
    to_fragments<E>(s, slopes);
    store_fragments<keys>(shared_address(mem.slopes(turn)) + threadIdx.x / 32 * 16 * panel_bytes,
                          slopes);
    publish_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(mem.shared_slopes(turn));
  }
  /// Gives this warpgroup's part of dQ to the warp that sends it.
  __device__ __forceinline__ void hand_over(int row, int head, int step) {
    const uint32_t group = warpgroup();
    barrier_wait(mem.sums_free(group), step & 1 ^ 1);
    char* to = mem.sums(group);
    const int r = threadIdx.x % group_threads / 32 * 16 + threadIdx.x % 32 / 4;
    // Odd rows take their columns in another order than even ones: what the rows of a warp write at
    // one time would lie in half of the banks otherwise, swizzled as it is.
    const bool odd = r % 2;
#pragma unroll
    for (int i = 0; i < D / 4; i += 2) {
      const int line = (i / 16 * queries + r + i / 2 % 2 * 8) * panel_bytes;
      const int piece = (i / 4 % 4 * 2 + first_column / 4) ^ (r % 2 * 4) ^ (r % 8);
      *reinterpret_cast<float2*>(to + line + piece * 16 + first_column % 4 * 4) = {
          odd ? dq[i ^ 8] : dq[i], odd ? dq[(i + 1) ^ 8] : dq[i + 1]};
    }
    if (threadIdx.x % group_threads == 0) mem.target(group) = {row, head};
    publish_shared();
    __syncwarp();
    release(mem.sums_full(group));
  }
  __device__ __forceinline__ void clear(const TileEntry& e, int stage) {
    const int first = mem.item(number).row, end = mem.item(number).row_end;
    clear_holes<queries, D / 64, consumers>(p.tile.tiles, e, first, end, mem.q(stage));
    clear_holes<queries, D / 64, consumers>(p.tile.tiles, e, first, end, mem.g(stage));
  }
  __device__ __forceinline__ void release(uint64_t* barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }
  __device__ __forceinline__ void meet_queries(const TileEntry& e, int step) {
    const int stage = step % S::stages;
    barrier_wait(mem.full(stage), step / S::stages & 1);
    if (e.flags & tile_holes) clear(e, stage);
  }
  /// From the scores and their slopes, both under way, to dS^T in shared memory and the product
  /// of dV.
  __device__ __forceinline__ void weigh(const TileEntry& e, const float (&lse)[n / 2], int step) {
    const int stage = step % S::stages;
    pin(s);
    probabilities(e, lse);
    to_fragments<E>(s, weights);
    value_gradient(stage);
    float delta[n / 2];
    read_statistics(mem.delta(stage), delta);
    products_wait<1>();
    share_slopes(e, delta, step);
  }

  /// `step` counts the blocks of queries of this thread block. The products of dK, dQ and the next
  /// scores are put together, so that there is always one under way.
  __device__ void run(int& step) {
    const int begin = mem.item(number).begin, steps = mem.item(number).end - begin;
    int head = mem.item(number).head * p.tile.group;
    step = same_in_warp(step);
    const TileEntry* entries = p.tile.tiles.entries + begin;
    resume(dv, p.dv, p.dv_stride, mem.item(number).head, p.fresh_dv);
    barrier_wait(mem.resident_full(), number & 1);
    clear_unseen<keys, D / 64, consumers>(p.tile.tiles, begin, begin + steps, mem.item(number).row,
                                          mem.k());
    int at = steps > 1 ? 1 : 0;  // of the entry after this one, fetched a step ahead
    TileEntry e = entries[0], next = entries[at];
    meet_queries(e, step);
    scores(step % S::stages);
    score_slopes(step % S::stages);
    float lse[n / 2];
    read_statistics(mem.lse(step % S::stages), lse);
    products_wait<1>();
    weigh(e, lse, step);
    resume(dk, p.dk, p.dk_stride, mem.item(number).head, p.fresh_dk);
    for (int left = steps * p.tile.group - 1; left > 0; --left) {
      const int row = e.col, query_head = head;
      e = next;
      if (at == 0) ++head;
      at = at + 1 < steps ? at + 1 : 0;
      next = entries[at];
      ++step;
      meet_queries(e, step);
      query_gradient(step - 1);
      key_gradient(step - 1);
      scores(step % S::stages);
      products_wait<2>();
      pin(dv);
      pin(dq);
      hand_over(row, query_head, step - 1);
      score_slopes(step % S::stages);
      read_statistics(mem.lse(step % S::stages), lse);
      products_wait<1>();
      pin(dk);
      release(mem.free((step - 1) % S::stages));
      weigh(e, lse, step);
    }
    query_gradient(step);
    key_gradient(step);
    products_wait<1>();
    pin(dv);
    pin(dq);
    hand_over(e.col, head, step);
    products_wait<0>();
    pin(dk);
    release(mem.free(step % S::stages));
    release(mem.resident_free());
    store(dk, p.dk, p.dk_stride, mem.item(number).head);
    store(dv, p.dv, p.dv_stride, mem.item(number).head);
    ++step;
  }
};

/// The last word of a warpgroup to its sender.
template <int D>
__device__ void end_sending(const Shared<D>& mem, int step) {
  const uint32_t group = warpgroup();
  barrier_wait(mem.sums_free(group), step & 1 ^ 1);
  if (threadIdx.x % group_threads == 0) mem.target(group) = {0, -1};
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(mem.sums_full(group));
}

template <class E, int D, bool capped>
__global__ void __launch_bounds__(threads, 1)
    backward_kernel(const __grid_constant__ BackwardParams p) {
  using S = Shape<D>;
  extern __shared__ char raw[];
  const Shared<D> mem(raw);
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::stages; ++s) {
      barrier_init(mem.full(s), 32);
      barrier_init(mem.free(s), consumers / 32);
    }
    for (int i = 0; i < 2; ++i) barrier_init(mem.shared_slopes(i), consumers / 32);
    barrier_init(mem.resident_full(), 1);
    barrier_init(mem.resident_free(), consumers / 32);
    barrier_init(mem.drawn(), 1);
    for (int group = 0; group < 2; ++group) {
      barrier_init(mem.sums_full(group), group_threads / 32);
      barrier_init(mem.sums_free(group), 1);
    }
    barriers_ready();
  }
  __syncthreads();
  if (threadIdx.x >= consumers) {
    give_registers<24>();
    const int warp = (threadIdx.x - consumers) / 32;
    if (warp == 0) fetch<D>(p, mem);
    if (warp > 0 && warp < 3 && threadIdx.x % 32 == 0) send(p, mem, warp - 1);
  } else {
    take_registers<240>();
    int step = 0;
    for (int n = 0;; ++n) {
      barrier_wait(mem.drawn(), n & 1);
      if (mem.item(n).head < 0) break;
      Consumer<E, D, capped> c(p, mem, n);
      c.run(step);
    }
    end_sending(mem, step);
  }
}

template <class E, int D>
cudaError_t launch(const BackwardParams& p, cudaStream_t stream) {
  const auto kernel =
      p.tile.softcap > 0 ? backward_kernel<E, D, true> : backward_kernel<E, D, false>;
  return start_kernel(kernel, p.tile.thread_blocks, threads, Shape<D>::bytes, p, stream);
}

}  // namespace

int backward_sum_rows(int d, int dv) { return has_kernel(d, dv) ? queries : 0; }

cudaError_t launch_backward(const BackwardParams& p, Operands x, cudaStream_t stream) {
  if (p.tile.tiles.blocks == 0) return cudaSuccess;
  return with_operands(x, [&]<class E, int D, int DV>() {
    if constexpr (has_kernel(D, DV)) {
      return launch<E, D>(p, stream);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace tessera::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
// Forward attention of a bf16 or f16 tile with any mask (attention brief 1.1, 1.2). A thread block
// draws items of 128 queries of one head: one warp fetches Q, K and V through the tensor copy
// engine, two warpgroups of 64 queries each multiply. The softmax of a block of keys runs while P V
// of the block before is computed, after the scheme of FlashAttention-3 (arXiv 2407.08608,
// section 3.2).
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/operands.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int queries = 128;
constexpr int consumers = 2 * group_threads;
constexpr int threads = consumers + group_threads;

template <int D, int DV>
struct Shape {
  static constexpr int keys = D > 192 ? 64 : 128;
  static constexpr int stages = 2;
  static constexpr int q_bytes = tile_bytes<D, queries>;
  static constexpr int k_bytes = tile_bytes<D, keys>;
  static constexpr int v_bytes = tile_bytes<DV, keys>;
  static constexpr int sums = q_bytes + stages * (k_bytes + v_bytes);
  /// The rows of a warpgroup on their way from and to memory, where there is room for them.
  static constexpr int sums_bytes = (DV + 31) / 32 * forward_sum_rows * panel_bytes;
  static constexpr int most = 232448;      // shared memory of a Hopper block
  static constexpr int rest = 256 + 1024;  // barriers; 1024: to align the first tile
  static constexpr bool has_sums = sums + 2 * sums_bytes + rest <= most;
  static constexpr int barriers = sums + (has_sums ? 2 * sums_bytes : 0);
  static constexpr int bytes = barriers + rest;
  static_assert(bytes <= most);
};

template <int D, int DV>
struct Shared {
  using S = Shape<D, DV>;
  char* base;
  __device__ explicit Shared(char* raw)
      : base(raw + (1024 - (shared_address(raw) & 1023)) % 1024) {}
  __device__ char* q() const { return base; }
  __device__ char* k(int stage) const { return base + S::q_bytes + stage * S::k_bytes; }
  __device__ char* v(int stage) const {
    return base + S::q_bytes + S::stages * S::k_bytes + stage * S::v_bytes;
  }
  __device__ char* sums(uint32_t group) const { return base + S::sums + group * S::sums_bytes; }
  __device__ uint64_t* barrier(int i) const {
    return reinterpret_cast<uint64_t*>(base + S::barriers) + i;
  }
  /// Of two in turn, so that consumers may look at theirs until they are done with it.
  __device__ Item& item(int n) const { return reinterpret_cast<Item*>(barrier(12))[n & 1]; }
  /// First band of a partial block; of four in turn, as consumers look at it when its keys have
  /// been given free, but not when those of the block after the next have.
  __device__ TileBand& band(int step) const {
    return reinterpret_cast<TileBand*>(barrier(18))[step % 4];
  }
  __device__ uint64_t* drawn() const { return barrier(10); }
  __device__ uint64_t* q_free() const { return barrier(9); }
  __device__ uint64_t* sums_full(uint32_t group) const { return barrier(30 + group); }
  __device__ uint64_t* q_full() const { return barrier(0); }
  __device__ uint64_t* k_full(int stage) const { return barrier(1 + stage); }
  __device__ uint64_t* v_full(int stage) const { return barrier(1 + S::stages + stage); }
  __device__ uint64_t* k_free(int stage) const { return barrier(1 + 2 * S::stages + stage); }
  __device__ uint64_t* v_free(int stage) const { return barrier(1 + 3 * S::stages + stage); }
};

/// One thread: draws items, and fetches their operands as far ahead as there is room.
template <int D, int DV>
__device__ void fetch(const ForwardParams& p, const Shared<D, DV>& mem) {
  using S = Shape<D, DV>;
  for (int n = 0, step = 0;; ++n) {
    const Item item = draw(p.tile, n);
    barrier_wait(mem.q_free(), n & 1 ^ 1);
    mem.item(n) = item;
    barrier_arrive(mem.drawn());
    if (item.head < 0) break;
    const int key_head = item.head / p.tile.group;
    barrier_expect(mem.q_full(), S::q_bytes);
    load_tile<D, queries>(mem.q(), &p.q, mem.q_full(), item.head, item.row);
    for (int i = item.begin; i < item.end; ++i, ++step) {
      const int stage = step % S::stages, turn = step / S::stages & 1;
      const TileEntry e = p.tile.tiles.entries[i];
      const int key = e.col;
      barrier_wait(mem.k_free(stage), turn ^ 1);
      if (e.flags & tile_partial) mem.band(step) = p.tile.tiles.bands[e.band_begin];
      barrier_expect(mem.k_full(stage), S::k_bytes);
      load_tile<D, S::keys>(mem.k(stage), &p.k, mem.k_full(stage), key_head, key);
      barrier_wait(mem.v_free(stage), turn ^ 1);
      barrier_expect(mem.v_full(stage), S::v_bytes);
      load_tile<DV, S::keys>(mem.v(stage), &p.v, mem.v_full(stage), key_head, key);
    }
  }
  leave(p.tile);
}

/// Running maximum (of raw scores) and this thread's part of the sum, of its two rows.
struct Rows {
  float top[2], sum[2];
  float factor[2];  ///< on what was summed before
  float before[2];  ///< lse of the tiles before
};

/// Both rows go side by side, and each in several chains: what is short is not arithmetic but work
/// that does not depend on the instruction before.
template <int n>
__device__ __forceinline__ void softmax(float (&s)[n], Rows& rows, float scale) {
  constexpr int chains = 2;
  float top[2], shift[2], part[2][chains];
#pragma unroll
  for (int i = 0; i < n; i += 4) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float& x = part[r][i / 4 % chains];
      const float y = fmaxf(s[i + 2 * r], s[i + 2 * r + 1]);
      x = i / 4 < chains ? y : fmaxf(x, y);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) top[r] = fmaxf(rows.top[r], fmaxf(part[r][0], part[r][1]));
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2) {
    const float other[2] = {__shfl_xor_sync(~0u, top[0], lanes),
                            __shfl_xor_sync(~0u, top[1], lanes)};
    top[0] = fmaxf(top[0], other[0]);
    top[1] = fmaxf(top[1], other[1]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float finite = top[r] == -INFINITY ? 0.f : top[r];
    shift[r] = finite * scale;
    rows.factor[r] = exp2_fast((rows.top[r] - finite) * scale);  // 1 if it is the same
    rows.top[r] = top[r];
    part[r][0] = rows.sum[r] * rows.factor[r];
    part[r][1] = 0;
  }
#pragma unroll
  for (int i = 0; i < n; i += 4) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float &x = s[i + 2 * r], &y = s[i + 2 * r + 1];
      x = exp2_fast(x * scale - shift[r]);
      y = exp2_fast(y * scale - shift[r]);
      part[r][i / 4 % chains] += x + y;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.sum[r] = part[r][0] + part[r][1];
}

/// `near`: the first of the bands, in shared memory.
template <int n>
__device__ __forceinline__ void apply_mask(const TileList& list, const TileEntry& e,
                                           const TileBand& near, int row, int first,
                                           float (&s)[n]) {
  uint32_t bits[2];
  visible_cells<n>(e.band_count == 1 ? &near : list.bands + e.band_begin, e.band_count, row, first,
                   bits);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (!is_visible(bits, i)) s[i] = -INFINITY;
  }
}

/// `rounded`: what comes out goes to another tensor than the sums, as E.
template <class E, int D, int DV, bool rounded>
struct Consumer {
  using S = Shape<D, DV>;
  const ForwardParams& p;
  const Shared<D, DV>& mem;
  int number, first_row, first_column;  ///< of the item, and of this thread in it
  float scale;                          ///< of raw scores, for powers of two
  float s[S::keys / 2], o[DV / 2];
  uint32_t fragments[S::keys / 4];
  Rows rows;

  __device__ __forceinline__ const Item& item() const { return mem.item(number); }
  __device__ __forceinline__ void scores(int step) {
    const int stage = step % S::stages;
    barrier_wait(mem.k_full(stage), step / S::stages & 1);
    products_begin();
    const uint32_t q = shared_address(mem.q()) + warpgroup() * 64 * panel_bytes;
    product_abt<E, D, queries, S::keys>(s, q, shared_address(mem.k(stage)));
    products_commit();
  }
  __device__ __forceinline__ void values(const TileEntry& e, int step) {
    const int stage = step % S::stages;
    barrier_wait(mem.v_full(stage), step / S::stages & 1);
    if (e.flags & tile_holes) {
      clear_holes<S::keys, (DV + 63) / 64, consumers>(p.tile.tiles, e, item().row, item().row_end,
                                                      mem.v(stage));
    }
    products_begin();
    product_pb<E, S::keys>(o, fragments, shared_address(mem.v(stage)));
    products_commit();
  }
  __device__ __forceinline__ void weights(const TileEntry& e, int step) {
    if (p.tile.softcap > 0) {
#pragma unroll
      for (float& x : s) x = p.tile.softcap * tanh_fast(x * p.tile.scale / p.tile.softcap);
    }
    if (e.flags & tile_partial) {
      apply_mask(p.tile.tiles, e, mem.band(step), item().row + first_row, e.col + first_column, s);
    }
    softmax(s, rows, scale);
  }
  __device__ __forceinline__ void rescale() {
#pragma unroll
    for (int j = 0; j < DV / 2; ++j) o[j] *= rows.factor[j / 2 % 2];
  }
  __device__ __forceinline__ void release(uint64_t* barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  __device__ __forceinline__ bool by_panels() const { return S::has_sums && p.by_panels; }
  __device__ __forceinline__ int row(int r) const { return item().row + first_row + 8 * r; }
  __device__ __forceinline__ float& lse(int r) const {
    return p.lse[item().head * p.lse_stride[0] + row(r) * p.lse_stride[1]];
  }
  /// Where the elements i and i + 1 of o lie in the panels. Odd rows take their columns in another
  /// order than even ones (i ^ 8 for i): what the rows of a warp touch at one time would lie in
  /// half of the banks otherwise, swizzled as it is.
  __device__ __forceinline__ float2& in_panels(char* sums, int i) const {
    const int r = first_row % forward_sum_rows + i / 2 % 2 * 8;
    const int piece = (i / 4 % 4 * 2 + first_column / 4) ^ (r % 2 * 4) ^ (r % 8);
    return *reinterpret_cast<float2*>(sums + (i / 16 * forward_sum_rows + r) * panel_bytes +
                                      piece * 16 + first_column % 4 * 4);
  }

  /// The rows as the tiles before left them, a partial output of weight exp(lse), set out for this
  /// warpgroup while it works on its item.
  __device__ __forceinline__ void fetch_sums() {
    const uint32_t group = warpgroup();
    if (p.fresh || !by_panels() || threadIdx.x % group_threads != 0) return;
    panels_read();  // of the item before
    barrier_expect(mem.sums_full(group), S::sums_bytes);
#pragma unroll
    for (int c = 0; c < DV; c += 32) {
      load_panel(mem.sums(group) + c * forward_sum_rows * 4, &p.sums, mem.sums_full(group), c,
                 item().head, item().row + static_cast<int>(group) * forward_sum_rows);
    }
  }
  /// Puts the tiles before and this one together (brief 1.2) in o, and says with what lse. Rows
  /// that this tile gave no weight stay as they are; empty ones become (0, -inf).
  __device__ __forceinline__ void join(float (&total_lse)[2]) {
    float own[2], other[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = rows.sum[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const float top = rows.top[r] * scale, before = rows.before[r] * log2_e;
      const float larger = fmaxf(top, before), finite = larger == -INFINITY ? 0.f : larger;
      own[r] = sum == 0 ? 0 : exp2_fast(top - finite);
      other[r] = exp2_fast(before - finite);
      const float total = own[r] * sum + other[r];
      total_lse[r] = sum == 0 ? rows.before[r] : (finite + log2f(total)) * ln_2;
      const float factor = total == 0 ? 0 : sum == 0 ? 1 : __fdividef(1, total);
      own[r] *= factor;
      other[r] *= factor;
      if (sum != 0) continue;
#pragma unroll
      for (int i = 2 * r; i < DV / 2; i += 4) o[i] = o[i + 1] = 0;  // may be 0 x NaN
    }
#pragma unroll
    for (int i = 0; i < DV / 2; ++i) o[i] *= own[i / 2 % 2];
    if (p.fresh) return;
    const auto add = [&](int i, int r, float x) { o[i] += other[r] == 0 ? 0 : other[r] * x; };
    if (by_panels()) {
      const uint32_t group = warpgroup();
      barrier_wait(mem.sums_full(group), number & 1);
      char* sums = mem.sums(group);
      const bool odd = first_row % 2;
#pragma unroll
      for (int j = 0; j < DV / 4; j += 2) {
        const int i = j / 8 * 16 + j % 8, r = i / 2 % 2;
        const float2 x = in_panels(sums, i), y = in_panels(sums, i + 8);
        add(i, r, odd ? y.x : x.x);
        add(i + 1, r, odd ? y.y : x.y);
        add(i + 8, r, odd ? x.x : y.x);
        add(i + 9, r, odd ? x.y : y.y);
      }
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float* from = p.o + row(r) * p.o_stride[0] + item().head * p.o_stride[1];
#pragma unroll
        for (int i = 2 * r; i < DV / 2; i += 4) {
          const float2 x =
              other[r] == 0 ? float2{0, 0}
                            : *reinterpret_cast<const float2*>(from + 2 * i - 4 * r + first_column);
          add(i, r, x.x);
          add(i + 1, r, x.y);
        }
      }
    }
  }
  /// All rows of a warpgroup go to memory by the copy engine, beside the next item.
  __device__ __forceinline__ void send_sums() {
    const uint32_t group = warpgroup();
    char* sums = mem.sums(group);
    const bool leader = threadIdx.x % group_threads == 0, odd = first_row % 2;
    if (p.fresh && leader) panels_read();  // of the item before; fetch_sums does it otherwise
    if (p.fresh || rounded) meet_group(group);
    if constexpr (rounded) {
      uint32_t out[DV / 4];
      to_fragments<E>(o, out);
      const uint32_t rows =
          shared_address(sums) + threadIdx.x % group_threads / 32 * 16 * panel_bytes;
      store_fragments<forward_sum_rows>(rows, out);
    } else {
#pragma unroll
      for (int i = 0; i < DV / 2; i += 2)
        in_panels(sums, i) = {odd ? o[i ^ 8] : o[i], odd ? o[(i + 1) ^ 8] : o[i + 1]};
    }
    publish_shared();
    meet_group(group);
    if (!leader) return;
    constexpr int columns = rounded ? panel : panel / 2;
#pragma unroll
    for (int c = 0; c < DV; c += columns) {
      store_panel(rounded ? &p.rounded_out : &p.sums,
                  sums + c / columns * forward_sum_rows * panel_bytes, c, item().head,
                  item().row + static_cast<int>(group) * forward_sum_rows);
    }
    panels_commit();
  }
  /// The elements of row r (0, 1) of this thread, where the copy engine does not carry them.
  __device__ __forceinline__ void write(int r) const {
    if constexpr (rounded) {
      char* to =
          p.rounded +
          (row(r) * p.rounded_stride[0] + item().head * p.rounded_stride[1] + first_column) * 2;
#pragma unroll
      for (int i = 2 * r; i < DV / 2; i += 4) {
        const auto x = E::pair(o[i], o[i + 1]);
        *reinterpret_cast<uint32_t*>(to + (i - 2 * r) * 4) = reinterpret_cast<const uint32_t&>(x);
      }
    } else {
      write_row(p.o + row(r) * p.o_stride[0] + item().head * p.o_stride[1] + first_column, o, r, 1);
    }
  }
  __device__ __forceinline__ void finish() {
    float total_lse[2];
    join(total_lse);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row(r) < item().row_end && first_column == 0) lse(r) = total_lse[r];
    }
    const int last = item().row + static_cast<int>(warpgroup() + 1) * forward_sum_rows;
    if (by_panels() && last <= item().row_end) return send_sums();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row(r) < item().row_end) write(r);
    }
    if (by_panels()) {  // what was read there, before it is fetched again
      publish_shared();
      meet_group(warpgroup());
    }
  }

  /// `step` counts the blocks of keys of this thread block.
  __device__ void run(int& step) {
    const int begin = item().begin, end = item().end;
    step = same_in_warp(step);
    const TileEntry* entries = p.tile.tiles.entries;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.before[r] = !p.fresh && row(r) < item().row_end ? lse(r) : -INFINITY;
      rows.top[r] = -INFINITY;
      rows.sum[r] = 0;
    }
#pragma unroll
    for (float& x : o) x = 0;
    barrier_wait(mem.q_full(), number & 1);
    TileEntry e = entries[begin];
    scores(step);
    products_wait<0>();
    pin(s);
    release(mem.k_free(step % S::stages));
    if (end - begin == 1) release(mem.q_free());
    weights(e, step);
    fetch_sums();
    to_fragments<E>(s, fragments);
    for (int i = begin + 1; i < end; ++i) {
      const TileEntry next = entries[i];
      ++step;
      scores(step);
      values(e, step - 1);
      products_wait<1>();
      pin(s);
      release(mem.k_free(step % S::stages));
      if (i + 1 == end) release(mem.q_free());
      e = next;
      weights(e, step);
      products_wait<0>();
      pin(o);
      release(mem.v_free((step - 1) % S::stages));
      rescale();
      to_fragments<E>(s, fragments);
    }
    values(e, step);
    products_wait<0>();
    pin(o);
    release(mem.v_free(step % S::stages));
    ++step;
    finish();
  }
};

template <class E, int D, int DV, bool rounded>
__global__ void __launch_bounds__(threads, 1)
    forward_kernel(const __grid_constant__ ForwardParams p) {
  using S = Shape<D, DV>;
  extern __shared__ char raw[];
  const Shared<D, DV> mem(raw);
  if (threadIdx.x == 0) {
    barrier_init(mem.q_full(), 1);
    barrier_init(mem.q_free(), consumers / 32);
    barrier_init(mem.drawn(), 1);
    for (int s = 0; s < S::stages; ++s) {
      barrier_init(mem.k_full(s), 1);
      barrier_init(mem.v_full(s), 1);
      barrier_init(mem.k_free(s), consumers / 32);
      barrier_init(mem.v_free(s), consumers / 32);
    }
    for (uint32_t group = 0; group < 2; ++group) barrier_init(mem.sums_full(group), 1);
    barriers_ready();
  }
  __syncthreads();
  if (threadIdx.x >= consumers) {
    give_registers<40>();
    if (threadIdx.x == consumers) fetch(p, mem);
  } else {
    take_registers<232>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float scale = (p.tile.softcap > 0 ? 1.f : p.tile.scale) * log2_e;
    for (int n = 0, step = 0;; ++n) {
      barrier_wait(mem.drawn(), n & 1);
      if (mem.item(n).head < 0) break;
      Consumer<E, D, DV, rounded> c{p, mem, n, warp * 16 + lane / 4, lane % 4 * 2, scale};
      c.run(step);
    }
    panels_done();
  }
}

template <class E, int D, int DV>
cudaError_t launch(const ForwardParams& p, cudaStream_t stream) {
  const auto kernel = p.rounded ? forward_kernel<E, D, DV, true> : forward_kernel<E, D, DV, false>;
  return start_kernel(kernel, p.tile.thread_blocks, threads, Shape<D, DV>::bytes, p, stream);
}

}  // namespace

TileShape forward_tile(int d, int dv) {
  const bool known = with_operands({Element::bf16, d, dv},
                                   []<class, int, int>() { return cudaSuccess; }) == cudaSuccess;
  return {known ? queries : 0, d > 192 ? 64 : 128};
}

cudaError_t launch_forward(const ForwardParams& p, Operands x, cudaStream_t stream) {
  if (p.tile.tiles.blocks == 0) return cudaSuccess;
  return with_operands(x, [&]<class E, int D, int DV>() { return launch<E, D, DV>(p, stream); });
}

}  // namespace tessera::kernels::cuda

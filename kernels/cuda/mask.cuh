// SPDX-License-Identifier: Apache-2.0
// Bands inside a tile, on the device: which cells a thread's accumulators may use, and the rows of
// streamed operands that nobody sees, which are set to zero since they may hold NaN.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/params.hpp"

namespace tessera::kernels::cuda {

/// Those below `end` of the columns that one thread holds (two of every eight), counted from its
/// first column.
template <int bits>
__device__ __forceinline__ uint32_t bits_below(int end) {
  const int e = min(max(end, 0), bits * 4);
  const int n = e / 8 * 2 + min(e % 8, 2);
  return n == 32 ? ~0u : (1u << n) - 1;
}

/// Visible columns of `row` among those that one thread holds: bit i stands for column
/// first + 8 (i / 2) + i % 2, `first` being the thread's first column.
template <int bits>
__device__ __forceinline__ uint32_t visible_bits(const TileBand* bands, int count, int row,
                                                 int first) {
  uint32_t out = 0;
  for (int b = 0; b < count; ++b) {
    const TileBand& band = bands[b];
    if (row < band.row0 || row >= band.row1) continue;
    const int begin = max(band.col0, row + band.lo) - first;
    const int end = min(band.col1, row + band.hi + 1) - first;
    out |= bits_below<bits>(end) & ~bits_below<bits>(begin);
  }
  return out;
}

/// Visible cells of the two rows (`row` and row + 8) of which a thread holds `n` scores.
template <int n>
__device__ __forceinline__ void visible_cells(const TileBand* bands, int count, int row, int first,
                                              uint32_t (&bits)[2]) {
  bits[0] = visible_bits<n / 2>(bands, count, row, first);
  bits[1] = visible_bits<n / 2>(bands, count, row + 8, first);
}

/// Is accumulator i (four for eight columns: two of the first row, two of the second) visible?
__device__ __forceinline__ bool is_visible(const uint32_t (&bits)[2], int i) {
  return bits[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1u;
}

/// Zeroes the rows of a streamed tile of `rows` x `panels` that no row of [row0, row1) sees. All
/// `threads` consumers call this; afterwards matrix products may read the tile.
template <int rows, int panels, int threads>
__device__ void clear_holes(const TileList& list, const TileEntry& e, int row0, int row1,
                            char* tile) {
  const int thread = threadIdx.x % threads;
  for (int r = thread / 8; r < rows; r += threads / 8) {
    const int col = e.col + r;
    bool seen = false;
    for (int b = 0; b < e.band_count; ++b) {
      const TileBand& band = list.bands[e.band_begin + b];
      const int first = max(max(band.row0, row0), col - band.hi);
      const int last = min(min(band.row1, row1), col - band.lo + 1);
      seen |= col >= band.col0 && col < band.col1 && first < last;
    }
    if (seen) continue;
    for (int c = 0; c < panels; ++c) {
      reinterpret_cast<uint4*>(tile + (c * rows + r) * panel_bytes)[thread % 8] = {0, 0, 0, 0};
    }
  }
  publish_shared();
  meet<1, threads>();
}

/// Zeroes the rows of a resident tile, the first of which is `row0`, that no column of any of its
/// entries sees. All `threads` consumers call this; afterwards products may read the tile.
template <int rows, int panels, int threads>
__device__ void clear_unseen(const TileList& list, int begin, int end, int row0, char* tile) {
  for (int i = begin; i < end; ++i)
    if (!(list.entries[i].flags & tile_partial)) return;
  const int thread = threadIdx.x % threads;
  for (int r = thread / 8; r < rows; r += threads / 8) {
    const int row = row0 + r;
    bool seen = false;
    for (int i = begin; i < end && !seen; ++i) {
      const TileEntry& e = list.entries[i];
      for (int b = e.band_begin; b < e.band_begin + e.band_count; ++b) {
        const TileBand& band = list.bands[b];
        seen |= row >= band.row0 && row < band.row1 &&
                max(band.col0, row + band.lo) < min(band.col1, row + band.hi + 1);
      }
    }
    if (seen) continue;
    for (int c = 0; c < panels; ++c) {
      reinterpret_cast<uint4*>(tile + (c * rows + r) * panel_bytes)[thread % 8] = {0, 0, 0, 0};
    }
  }
  publish_shared();
  meet<1, threads>();
}

/// The elements of row r (0, 1) that this thread holds, from memory; 0 if nothing is `there`. What
/// goes on from a sum reads it first and not in the end, where nothing hides the way to memory.
template <int n>
__device__ __forceinline__ void read_row(float (&x)[n], const float* from, int r, bool there) {
#pragma unroll
  for (int i = 0; i < n / 4; ++i) {
    const float2 y = there ? *reinterpret_cast<const float2*>(from + 8 * i) : float2{0, 0};
    x[4 * i + 2 * r] = y.x;
    x[4 * i + 2 * r + 1] = y.y;
  }
}
template <int n>
__device__ __forceinline__ void write_row(float* to, const float (&x)[n], int r, float factor) {
#pragma unroll
  for (int i = 0; i < n / 4; ++i) {
    *reinterpret_cast<float2*>(to + 8 * i) = {factor * x[4 * i + 2 * r],
                                              factor * x[4 * i + 2 * r + 1]};
  }
}

/// One block of rows of one head, with its list of entries. A head below 0: no more work.
struct Item {
  int row, row_end, head, begin, end;
};
/// The i-th item: blocks of one set of heads are neighbours.
__device__ __forceinline__ Item item_of(const Tile& t, int i) {
  const int wide = t.wide_sets * t.heads_at_once;
  const bool is_wide = i < wide * t.tiles.blocks;
  const int here = t.heads_at_once - (is_wide ? 0 : t.heads_less);
  const int from = is_wide ? 0 : wide;
  const int at = i - from * t.tiles.blocks, size = here * t.tiles.blocks;
  const int first = from + at / size * here;
  const int rest = at % size, rank = rest / here;
  const TileRows rows = t.tiles.rows[rank];
  return {rows.begin, rows.end, first + rest % here, t.tiles.begin[rank], t.tiles.begin[rank + 1]};
}

/// The next item of a launch, by one thread of a thread block that drew `before` of them. Drawing
/// spreads what a thread block costs over several items, and no multiprocessor that is slow or busy
/// with another kernel holds up a share of the work.
__device__ __forceinline__ Item draw(const Tile& t, int before) {
  if (before >= t.items_at_most) return {0, 0, -1, 0, 0};
  const int i = atomicAdd(t.tiles.drawn, 1);
  return i < t.items ? item_of(t, i) : Item{0, 0, -1, 0, 0};
}
/// After its last draw; the last thread block leaves the counters as it found them.
__device__ __forceinline__ void leave(const Tile& t) {
  __threadfence();
  if (atomicAdd(t.tiles.drawn + 1, 1) == static_cast<int>(gridDim.x) - 1) {
    t.tiles.drawn[0] = 0;
    t.tiles.drawn[1] = 0;
  }
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// tanh(x) with an absolute error of a few 1e-7, without a branch.
__device__ __forceinline__ float tanh_fast(float x) {
  return 1 - __fdividef(2.f, 1 + exp2_fast(2 * 1.4426950408889634f * x));
}
/// Tells the compiler that x is the same for a whole warp, so that it may lie in uniform registers,
/// where matrix products expect their descriptors.
__device__ __forceinline__ int same_in_warp(int x) { return __shfl_sync(~0u, x, 0); }
__device__ __forceinline__ uint32_t warpgroup() {
  return same_in_warp(threadIdx.x / group_threads);
}

inline constexpr float log2_e = 1.4426950408889634f;
inline constexpr float ln_2 = 0.6931471805599453f;

}  // namespace tessera::kernels::cuda

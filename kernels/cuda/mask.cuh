// SPDX-License-Identifier: Apache-2.0
// Bands inside a tile, on the device: which cells a thread's accumulators may use, and the rows of
// streamed operands that nobody sees, which are set to zero since they may hold NaN.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/params.hpp"

namespace tessera::kernels::cuda {

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
#pragma unroll
    for (int i = 0; i < bits; ++i) {
      const int c = i / 2 * 8 + i % 2;
      out |= (c >= begin && c < end ? 1u : 0u) << i;
    }
  }
  return out;
}

/// Visible cells of the two rows (`row` and row + 8) of which a thread holds `n` scores.
template <int n>
__device__ __forceinline__ void visible_cells(const TileList& list, const TileEntry& e, int row,
                                              int first, uint32_t (&bits)[2]) {
  const TileBand* bands = list.bands + e.band_begin;
  bits[0] = visible_bits<n / 2>(bands, e.band_count, row, first);
  bits[1] = visible_bits<n / 2>(bands, e.band_count, row + 8, first);
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
    const int col = e.block * rows + r;
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

/// memory <- keep memory + take x over the elements of row r (0, 1) that this thread holds; keep =
/// 0 does not read. All loads are put before the first store: one trip to memory and not one for
/// each.
template <int n>
__device__ __forceinline__ void blend_row(float* out, const float (&x)[n], int r, float keep,
                                          float take) {
  float2 old[n / 4];
#pragma unroll
  for (int i = 0; i < n / 4; ++i) {
    old[i] = keep == 0 ? float2{0, 0} : *reinterpret_cast<const float2*>(out + 8 * i);
  }
#pragma unroll
  for (int i = 0; i < n / 4; ++i) {
    const float a = x[4 * i + 2 * r], b = x[4 * i + 2 * r + 1];
    *reinterpret_cast<float2*>(out + 8 * i) = {keep * old[i].x + take * a,
                                               keep * old[i].y + take * b};
  }
}

/// Block of rows and head of this thread block: blocks of one group of heads are neighbours.
struct Place {
  int rank, head;
};
__device__ __forceinline__ Place place_of(const Tile& t, int heads) {
  const int size = t.heads_at_once * t.tiles.blocks;
  const int first = static_cast<int>(blockIdx.x) / size * t.heads_at_once;
  const int here = min(t.heads_at_once, heads - first);
  const int rest = static_cast<int>(blockIdx.x) % size;
  return {rest / here, first + rest % here};
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
/// Warpgroup of this thread, known to be the same for a whole warp.
__device__ __forceinline__ uint32_t warpgroup() {
  return __shfl_sync(~0u, threadIdx.x / group_threads, 0);
}

inline constexpr float log2_e = 1.4426950408889634f;
inline constexpr float ln_2 = 0.6931471805599453f;

}  // namespace tessera::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
// What the two backward kernels that own blocks of keys share (attention brief 1.3). Scores are
// computed transposed (keys x queries), so that P^T and dS^T are operands straight from registers.
// A warp fetches queries, gradients and their statistics; two warpgroups own 64 keys each.
#pragma once

#include "kernels/cuda/mask.cuh"

namespace tessera::kernels::cuda {

inline constexpr int block_keys = 128;
inline constexpr int key_consumers = 2 * group_threads;
inline constexpr int key_threads = key_consumers + group_threads;

/// Rows of the statistics: lse in powers of two, +inf where there is no gradient, and scale Delta.
/// By one warp.
template <int queries>
__device__ __forceinline__ void fetch_statistics(const BackwardParams& p, float* to_lse,
                                                 float* to_delta, int row, int head) {
  for (int i = threadIdx.x % 32; i < queries; i += 32) {
    const int q = row + i;
    float lse = -INFINITY, delta = 0;
    if (q < p.tile.rows) {
      lse = p.lse[head * p.lse_stride[0] + q * p.lse_stride[1]];
      delta = p.delta[head * p.delta_stride[0] + q * p.delta_stride[1]];
    }
    to_lse[i] = lse == -INFINITY ? INFINITY : lse * log2_e;
    to_delta[i] = lse == -INFINITY ? 0 : p.tile.scale * delta;
  }
}

/// A block of `queries` queries (scores s, and t = dP^T) against 64 keys of a warpgroup, of which
/// this thread holds two rows.
template <int queries, bool capped>
struct KeyScores {
  static constexpr int n = queries / 2;
  const Tile& tile;
  int first_key, end_key;  ///< of this thread, and of the block of keys, in the tensor
  int first_column;        ///< of this thread in a block of queries
  float s[n], t[n];
  uint32_t visible[2];  ///< cells of a partial block

  /// Of the queries whose scores this thread holds. They are read while products are under way:
  /// these keep shared memory so busy that it answers late.
  __device__ __forceinline__ void read_statistics(const float* from, float (&to)[n / 2]) const {
#pragma unroll
    for (int i = 0; i < n / 2; i += 2) {
      const float2 x = *reinterpret_cast<const float2*>(from + i * 4 + first_column);
      to[i] = x.x;
      to[i + 1] = x.y;
    }
  }
  /// Scores become probabilities, 0 where masked.
  __device__ __forceinline__ void probabilities(const TileEntry& e, const float (&lse)[n / 2]) {
    const float scale = tile.scale * log2_e, cap = tile.softcap;
#pragma unroll
    for (int i = 0; i < n; i += 4) {
#pragma unroll
      for (int j = i; j < i + 4; ++j) {
        if constexpr (capped) s[j] = cap / tile.scale * tanh_fast(s[j] * tile.scale / cap);
        s[j] = exp2_fast(s[j] * scale - lse[i / 2 + j % 2]);
      }
    }
    if (e.flags & tile_partial) {
      visible_cells<n>(tile.tiles.bands + e.band_begin, e.band_count, first_key,
                       e.col + first_column, visible);
#pragma unroll
      for (int i = 0; i < n; ++i) s[i] = is_visible(visible, i) ? s[i] : 0;
    }
  }
  /// s = P^T becomes scale dS^T = P^T (scale dP^T - scale Delta), so that products with it are
  /// dK and dQ; with a cap, its slope is worked out from P: cap tanh(x) = ln P + lse.
  __device__ __forceinline__ void score_gradient(const TileEntry& e, const float* lse,
                                                 const float (&delta)[n / 2]) {
    const float cap = tile.softcap;
#pragma unroll
    for (int i = 0; i < n; i += 4) {
#pragma unroll
      for (int j = i; j < i + 4; ++j) {
        float slope = tile.scale * t[j] - delta[i / 2 + j % 2];
        if constexpr (capped) {
          const float l = lse[i / 4 * 8 + first_column + j % 2];
          const float x = (log2f(s[j]) + l) * ln_2 / cap;
          slope = s[j] > 0 ? slope * (1 - x * x) : 0;
        }
        s[j] *= slope;
      }
    }
    if (e.flags & tile_partial) {  // what is masked may have met NaN in t
#pragma unroll
      for (int i = 0; i < n; ++i) s[i] = is_visible(visible, i) ? s[i] : 0;
    }
  }
  /// The rows of dK or dV as the tiles before left them.
  template <int m>
  __device__ void resume(float (&x)[m], const float* from, const int64_t (&stride)[2], int head,
                         bool fresh) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int k = first_key + 8 * r;
      read_row(x, from + k * stride[0] + head * stride[1] + first_column, r, !fresh && k < end_key);
    }
  }
  template <int m>
  __device__ void store(const float (&x)[m], float* to, const int64_t (&stride)[2],
                        int head) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int k = first_key + 8 * r;
      if (k >= end_key) continue;
      write_row(to + k * stride[0] + head * stride[1] + first_column, x, r, 1);
    }
  }
};

}  // namespace tessera::kernels::cuda

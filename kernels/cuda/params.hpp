// SPDX-License-Identifier: Apache-2.0
// The border between host code and kernels: plain structs of pointers, sizes and strides (in
// elements), and one launch function for each kernel. Pointers are device addresses.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace tessera::kernels::cuda {

enum class Element : int { f64, f32, bf16, f16 };

/// [d0, d1, d2] with any strides.
struct View {
  void* data;
  Element type;
  int64_t shape[3], stride[3];
};

/// Two tensors of one shape; types may differ.
struct Pair {
  View x, y;
};

/// x = 0 for all x; y = x, or y += x, for all pairs: one launch for each 24 of them.
cudaError_t launch_zero(std::span<const View> x, cudaStream_t stream);
cudaError_t launch_copy(std::span<const Pair> pairs, cudaStream_t stream);
cudaError_t launch_add(std::span<const Pair> pairs, cudaStream_t stream);
inline constexpr int most_terms = 64;  ///< of a sum
/// y = the sum of 1 to most_terms terms of one type, whatever y held.
cudaError_t launch_sum(std::span<const View> terms, const View& y, cudaStream_t stream);

/// Partial output o[token, head, dim] and statistics lse[head, token] of one element type.
struct State {
  View o, lse;
};
/// The partial output of `in` may be bf16 or f16 where `acc` is f32, and so may `to`, which takes
/// the merged output: that of `acc`, or another tensor; everything else is of the type of `acc`.
cudaError_t launch_merge(const State& in, const State& acc, const View& to, cudaStream_t stream);
cudaError_t launch_delta(const View& o, const View& grad, const View& delta, cudaStream_t stream);
/// o = grad delta / |grad|^2, both bf16 or both f16: an output whose rowsum(o * grad) is delta. 0
/// where grad is.
cudaError_t launch_output_of_delta(const View& grad, const View& delta, const View& o,
                                   cudaStream_t stream);
cudaError_t launch_sink(const View& sink, const State& acc, cudaStream_t stream);
cudaError_t launch_sink_grad(const View& sink, const View& lse, const View& delta, const View& grad,
                             cudaStream_t stream);
cudaError_t launch_reset(const State& out, cudaStream_t stream);

/// A piece of a mask as ops::Band, in 32 bits. Rows are those of the resident side: queries, or
/// keys where a kernel keeps keys and runs over queries (bands are then transposed).
struct TileBand {
  int row0, row1, col0, col1, lo, hi;
};

enum TileFlags : int {
  tile_partial = 1,  ///< some cells are masked or not in the tensor: the bands say which
  tile_holes = 2     ///< some columns are seen by no row: what they hold must not be touched
};

/// One block of columns, `col` being the first, that a block of rows meets.
struct TileEntry {
  int col, flags, band_begin, band_count;
};

/// A block of rows.
struct TileRows {
  int begin, end;
};

/// For every block of rows with visible cells, most work first, its blocks of columns.
struct TileList {
  const TileRows* rows;      ///< [blocks]
  const int* begin;          ///< [blocks + 1] entries of the i-th in that order
  const TileEntry* entries;  ///< ascending blocks of columns
  const TileBand* bands;     ///< of the partial entries
  int* drawn;                ///< [2] items drawn, thread blocks that have left; 0 between launches
  int blocks, num_entries;
};

/// What all attention kernels share. heads: query heads; group: query heads of one key head.
/// Blocks of heads_at_once heads run together, so that what they stream stays in the L2 cache:
/// wide_sets sets of so many, the others of heads_less less.
struct Tile {
  TileList tiles;
  int rows, keys, heads, group, heads_at_once, heads_less, wide_sets;
  float scale, softcap;
  /// Thread blocks of kernels that draw their work draw at most so many of these items, an item
  /// being a block of rows of one head.
  int items, items_at_most, thread_blocks;
};

/// Tensor maps: dimensions (d, head, token), boxes of 64 columns and the rows of the kernel's tile.
struct ForwardParams {
  CUtensorMap q, k, v;
  CUtensorMap sums;  ///< o in panels of 32 columns and forward_sum_rows rows, if by_panels
  Tile tile;
  float* o;
  int64_t o_stride[2];  ///< token, head
  float* lse;
  int64_t lse_stride[2];  ///< head, token
  bool fresh;             ///< (o, lse) is empty, whatever it holds
  bool by_panels;         ///< the copy engine can read and write o
  char* rounded;          ///< where o goes instead, as the type of q; null: it does not
  int64_t rounded_stride[2];
  CUtensorMap rounded_out;  ///< of it, forward_sum_rows rows
};

struct BackwardParams {
  CUtensorMap q, k, v, grad;
  CUtensorMap dq_sums;  ///< dq for the reduction by the copy engine, in the one-pass kernel only
  Tile tile;
  const float *lse, *delta;
  int64_t lse_stride[2], delta_stride[2];  ///< head, token
  float *dq, *dk, *dv;
  int64_t dq_stride[2], dk_stride[2], dv_stride[2];  ///< token, head
  bool fresh_dq, fresh_dk, fresh_dv;  ///< it is empty, whatever it holds, and is written whole
};

/// Rows of the tiles that a kernel of head sizes (d, dv) works on; resident = 0: no such kernel.
struct TileShape {
  int resident, streamed;
};
TileShape forward_tile(int d, int dv);
TileShape backward_query_tile(int d, int dv);
TileShape backward_key_tile(int d, int dv);

inline constexpr int forward_sum_rows = 64;
/// Element type, bf16 or f16, and head sizes of the operands of tensor-core kernels.
struct Operands {
  Element type;
  int d, dv;
};
/// Operands without a kernel give cudaErrorInvalidValue.
cudaError_t launch_forward(const ForwardParams& p, Operands x, cudaStream_t stream);
cudaError_t launch_backward_queries(const BackwardParams& p, Operands x, cudaStream_t stream);
cudaError_t launch_backward_keys(const BackwardParams& p, Operands x, cudaStream_t stream);
/// dq too, in the same pass over the tile: blocks of keys add to it in the order in which they
/// come, so that its last bits differ from run to run.
cudaError_t launch_backward(const BackwardParams& p, Operands x, cudaStream_t stream);
/// Rows of the tensor map of dq that launch_backward needs; 0: no such kernel.
int backward_sum_rows(int d, int dv);

/// Attention without tensor cores, for all element types: a warp for each row, d and dv <= 512.
struct PlainParams {
  View q, k, v, grad, o, lse, delta, dq, dk, dv;  ///< forward uses q k v o lse
  const TileBand* bands;                          ///< rows are queries
  int num_bands;
  double scale, softcap;
};
cudaError_t launch_plain_forward(const PlainParams& p, cudaStream_t stream);
cudaError_t launch_plain_backward(const PlainParams& p, cudaStream_t stream);

}  // namespace tessera::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
// Thin names for the Hopper instructions that the attention kernels use: barriers in shared memory,
// the tensor copy engine, descriptors of swizzled tiles, the order of matrix products.
//
// A tile [rows, D] of bf16 or f16 lies in shared memory as D / 64 panels [rows, 64]; a row of a
// panel is 128 bytes, and its 16-byte pieces are swizzled by the row (CU_TENSOR_MAP_SWIZZLE_128B).
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/wgmma_registers.cuh"
#include "kernels/cuda/wgmma_shared.cuh"

namespace tessera::kernels::cuda {

/// Element types of the operands of matrix products.
struct Bf16 {
  static constexpr char name[] = "bf16";
  static __device__ __forceinline__ __nv_bfloat162 pair(float low, float high) {
    return __floats2bfloat162_rn(low, high);
  }
};
struct F16 {
  static constexpr char name[] = "f16";
  static __device__ __forceinline__ __half2 pair(float low, float high) {
    return __floats2half2_rn(low, high);
  }
};

inline constexpr int panel = 64;           ///< columns of a panel
inline constexpr int panel_bytes = 128;    ///< bytes of one row of a panel
inline constexpr int group_threads = 128;  ///< a warpgroup

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done;\n"
      "bra again;\n"
      "done:\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
/// Barriers that were initialised become visible to the copy engine.
__device__ __forceinline__ void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// One panel [rows, 64] at (column, head, row) of a tensor map with dimensions d, head, token.
__device__ __forceinline__ void load_panel(void* to, const CUtensorMap* map, uint64_t* barrier,
                                           int column, int head, int row) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(head), "r"(row)
      : "memory");
}

/// Adds a panel of f32 [rows, 32] to memory; rows and columns outside the tensor are left out.
__device__ __forceinline__ void add_panel(const CUtensorMap* map, const void* from, int column,
                                          int head, int row) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group"
      " [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(shared_address(from)), "r"(column), "r"(head), "r"(row)
      : "memory");
}
/// Writes a panel, f32 [rows, 32] or 16 bits [rows, 64], to memory; rows and columns outside the
/// tensor are left out.
__device__ __forceinline__ void store_panel(const CUtensorMap* map, const void* from, int column,
                                            int head, int row) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
          map),
      "r"(shared_address(from)), "r"(column), "r"(head), "r"(row)
      : "memory");
}
__device__ __forceinline__ void panels_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until the panels that this thread added or stored have been read from shared memory.
__device__ __forceinline__ void panels_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// Waits until they are in memory.
__device__ __forceinline__ void panels_done() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

template <int D, int rows>
__device__ __forceinline__ void load_tile(char* to, const CUtensorMap* map, uint64_t* barrier,
                                          int head, int row) {
#pragma unroll
  for (int c = 0; c < (D + panel - 1) / panel; ++c) {
    load_panel(to + c * rows * panel_bytes, map, barrier, c * panel, head, row);
  }
}

/// Bytes of a tile; the copy engine fills columns beyond D and rows beyond the tensor with zeros.
template <int D, int rows>
inline constexpr int tile_bytes = (D + panel - 1) / panel* rows* panel_bytes;

/// Descriptor of an operand: start, leading offset, stride (in 16 bytes), swizzle of 128 bytes. Its
/// upper half is the same for all operands, and moving the start is one addition to the lower half.
struct Operand {
  uint32_t low;
  __device__ __forceinline__ Operand(uint32_t tile, int leading)
      : low((tile & 0x3ffff) >> 4 | static_cast<uint32_t>(leading >> 4) << 16) {}
  __device__ __forceinline__ uint64_t at(int bytes) const {
    constexpr uint32_t high = 8 * panel_bytes >> 4 | 1u << 30;
    return static_cast<uint64_t>(high) << 32 | (low + (bytes >> 4));
  }
};
/// Operand whose depth runs along the columns of a tile of `rows` rows.
template <int rows>
struct AlongColumns : Operand {
  __device__ __forceinline__ explicit AlongColumns(uint32_t tile) : Operand(tile, 16) {}
  __device__ __forceinline__ uint64_t step(int k) const {
    return at(k / 4 * rows * panel_bytes + k % 4 * 32);
  }
};
/// Operand whose depth runs along the rows of the tile (its columns are contiguous).
template <int rows>
struct AlongRows : Operand {
  __device__ __forceinline__ explicit AlongRows(uint32_t tile)
      : Operand(tile, rows * panel_bytes) {}
  __device__ __forceinline__ uint64_t step(int k) const { return at(k * 16 * panel_bytes); }
};

__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `pending` groups of products are under way.
template <int pending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
/// Keeps the compiler from moving uses of these registers across a wait.
template <class T, int n>
__device__ __forceinline__ void pin(T (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if constexpr (sizeof(T) == 4 && !__is_same(T, uint32_t)) {
      asm volatile("" : "+f"(x[i])::"memory");
    } else {
      asm volatile("" : "+r"(x[i])::"memory");
    }
  }
}

/// s (64 x N) = A (64 x D, rows of a tile) B^T (N x D): both along their columns.
template <class E, int D, int rows_a, int rows_b, int n>
__device__ __forceinline__ void product_abt(float (&s)[n], uint32_t a, uint32_t b) {
  const AlongColumns<rows_a> x(a);
  const AlongColumns<rows_b> y(b);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    product<E>(s, x.step(k), y.step(k), k > 0);
  }
}
/// o (64 x N) += P (64 x depth, fragments in registers) B (depth x N, rows of a tile).
template <class E, int rows_b, int n, int m>
__device__ __forceinline__ void product_pb(float (&o)[n], const uint32_t (&p)[m], uint32_t b) {
  const AlongRows<rows_b> y(b);
#pragma unroll
  for (int k = 0; k < m / 4; ++k) {
    const uint32_t a[4] = {p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3]};
    product<E, 1>(o, a, y.step(k), 1);
  }
}

/// The fragments of 16 rows of a tile (those of this warp in `tile`), for all of the depth D.
template <int D, int rows>
__device__ __forceinline__ void load_fragments(uint32_t tile, uint32_t (&a)[D / 4]) {
  const int lane = threadIdx.x % 32, row = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const int piece = 2 * (k % 4) + lane / 16;
    const uint32_t at = tile + (k / 4 * rows + row) * panel_bytes + ((piece ^ (row % 8)) * 16);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[4 * k]), "=r"(a[4 * k + 1]), "=r"(a[4 * k + 2]), "=r"(a[4 * k + 3])
                 : "r"(at)
                 : "memory");
  }
}
/// The opposite: fragments of 16 rows (those of this warp in the first panel), 4 n columns of a
/// tile of `rows` rows, into shared memory.
template <int rows, int n>
__device__ __forceinline__ void store_fragments(uint32_t tile, const uint32_t (&a)[n]) {
  const int lane = threadIdx.x % 32, row = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < n / 4; ++k) {
    const int piece = 2 * (k % 4) + lane / 16;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     tile + (k / 4 * rows + row) * panel_bytes + ((piece ^ (row % 8)) * 16)),
                 "r"(a[4 * k]), "r"(a[4 * k + 1]), "r"(a[4 * k + 2]), "r"(a[4 * k + 3])
                 : "memory");
  }
}
/// x (64 x N) += A (64 x depth, along its columns) B (depth x N, rows of a tile).
template <class E, int rows_a, int depth, int n>
__device__ __forceinline__ void product_ab(float (&x)[n], uint32_t a, uint32_t b) {
  const AlongColumns<rows_a> left(a);
  const AlongRows<depth> right(b);
#pragma unroll
  for (int k = 0; k < depth / 16; ++k) {
    product<E, 0, 1>(x, left.step(k), right.step(k), 1);
  }
}
/// x (64 x N) = A^T (depth x 64) B (depth x N): the depth of both runs along the rows of a tile.
template <class E, int depth, int n>
__device__ __forceinline__ void product_atb(float (&x)[n], uint32_t a, uint32_t b) {
  const AlongRows<depth> left(a), right(b);
#pragma unroll
  for (int k = 0; k < depth / 16; ++k) {
    product<E, 1, 1>(x, left.step(k), right.step(k), k > 0);
  }
}
/// s (64 x N) = A (64 x D, fragments in registers) B^T (N x D, along its columns).
template <class E, int D, int rows_b, int n>
__device__ __forceinline__ void product_fbt(float (&s)[n], const uint32_t (&f)[D / 4], uint32_t b) {
  const AlongColumns<rows_b> y(b);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const uint32_t a[4] = {f[4 * k], f[4 * k + 1], f[4 * k + 2], f[4 * k + 3]};
    product<E, 0>(s, a, y.step(k), k > 0);
  }
}

/// Accumulators of 64 x N become the fragments of an operand of depth N: same places, as E.
template <class E, int n>
__device__ __forceinline__ void to_fragments(const float (&s)[n], uint32_t (&p)[n / 2]) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    const auto x = E::pair(s[2 * i], s[2 * i + 1]);
    p[i] = reinterpret_cast<const uint32_t&>(x);
  }
}

/// Named barrier of `threads` threads; 0 is __syncthreads.
template <int id, int threads>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync %0, %1;" ::"n"(id), "n"(threads) : "memory");
}
/// Barrier of the threads of one warpgroup.
__device__ __forceinline__ void meet_group(uint32_t group) {
  asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(group_threads) : "memory");
}
/// Ordinary writes to shared memory become visible to matrix products.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Starts a kernel that takes `bytes` of shared memory, more than a thread block has unasked.
template <class Params>
cudaError_t start_kernel(void (*kernel)(Params), int thread_blocks, int threads, int bytes,
                         const Params& p, cudaStream_t stream) {
  const cudaError_t set =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (set != cudaSuccess) return set;
  kernel<<<thread_blocks, threads, bytes, stream>>>(p);
  return cudaGetLastError();
}

template <int registers>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

}  // namespace tessera::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
// What an operator is called with: its name, tensors in the documented order, typed attributes.
// The operators of the attention room, with their argument order, are listed here once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "memory/tensor_ref.hpp"

namespace tessera::ops {

/// One piece of a mask in the local coordinates of a tile: cell (q, k) is visible when
///   q in [q0, q1), k in [k0, k1) and lo <= k - q <= hi.
/// The bands of one mask are pairwise disjoint. Cutting by rows or columns and translating give
/// bands again, which is what makes a mask distributable (attention brief 6.3, 6.5).
struct Band {
  static constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max() / 4;
  std::int64_t q0 = 0, q1 = 0, k0 = 0, k1 = 0;
  std::int64_t lo = -unbounded, hi = unbounded;

  /// Visible keys of row q as [begin, end); empty when begin >= end.
  Range keys_of(std::int64_t q) const {
    if (q < q0 || q >= q1) return {0, 0};
    const std::int64_t b = lo <= -unbounded ? k0 : std::max(k0, q + lo);
    const std::int64_t e = hi >= unbounded ? k1 : std::min(k1, q + hi + 1);
    return b < e ? Range{b, e} : Range{0, 0};
  }
  bool operator==(const Band&) const = default;
};

/// Attributes of the attention operators; other operators ignore them.
struct Attributes {
  std::span<const Band> mask;  ///< visible cells of the tile; none = nothing visible
  double scale = 1.0;          ///< factor on Q K^T
  double softcap = 0.0;        ///< S <- cap * tanh(S / cap); 0 = off
  /// Bit i: argument i is to be taken as empty (0, a state as (0, -inf)) whatever its memory holds,
  /// and is written whole. Only where Implementation::overwrites said so for this call.
  std::uint32_t fresh = 0;
  /// Takes the partial output (partial_output()) as it is after the call, rounded to the type of
  /// this tensor of its shape; the argument itself holds anything afterwards. No data: none. Only
  /// where Implementation::stores said so for this call.
  TensorRef store{};
};

/// The argument of an operator that is a partial output it updates; 0: it has none.
constexpr std::size_t partial_output(std::string_view op) {
  return op == "attention.forward" ? 3 : op == "attention.merge" ? 2 : 0;
}

/// Most tensors that one tensor.sum takes: they travel as arguments of a kernel.
inline constexpr std::size_t max_terms = 64;

// Operator names and arguments. T: storage dtype; A: accumulate_type(T). In = read, acc = updated.
//   attention.forward   q[m,Hq,d] k[n,Hk,d] v[n,Hk,dv] : T in;  o[m,Hq,dv] lse[Hq,m] : A acc
//       (o, lse) <- merge of (o, lse) with the partial attention of the tile; (0, -inf) is the
//       identity, a row without a visible key leaves (o, lse) as it was. Hq / Hk is an integer.
//   attention.backward  q k v do[m,Hq,dv] : T in; lse[Hq,m] delta[Hq,m] : A in;
//                       dq[m,Hq,d] dk[n,Hk,d] dv[n,Hk,dv] : A acc (+=), given FINAL lse and delta
//   attention.merge     o_in lse_in : A in;  o lse : A acc       merge of two partials
//   attention.delta     o[m,Hq,dv] do : T or A in;  delta[Hq,m] : A out   rowsum(o * do)
//   attention.sink      sink[Hq] : A in;  o lse : A acc
//       L' = logaddexp(L, sink), O' = O exp(L - L')
//   attention.sink_grad sink[Hq] lse delta : A in;  dsink[Hq] : A acc
//       dsink -= sum over rows of exp(sink - lse) delta
//   attention.reset     o lse : A out                            o = 0, lse = -inf
//   tensor.zero         x0 .. out                                x = 0, any number of x
//   tensor.copy         x0 in, y0 out, x1 in, y1 out, ..         y = x, any number of pairs
//   tensor.add          x0 in, y0 acc, x1 in, y1 acc, ..         y += x, any number of pairs
//   tensor.sum          x0 .. x(k-1) in, y out, 1 <= k <= max_terms   y = x0 + x1 + ..
//       Any strides; the two of a pair, and y and the x of a sum, have one shape. Types: any of y,
//       any of each x, but the x of a sum are of one type. Sums are in A of y's type, in the order
//       of the arguments, and are rounded to y's type once. No output overlaps another argument.
struct Call {
  std::string_view name;
  std::vector<TensorRef> args;
  Attributes attributes;
  /// Called between sub-tiles of long work so that transfers advance; may be empty.
  std::function<void()> progress;
  /// Device queue (cudaStream_t) that work on device tensors is put on; run() does not wait for it.
  void* stream = nullptr;
};

}  // namespace tessera::ops

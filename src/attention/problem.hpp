// SPDX-License-Identifier: Apache-2.0
// What is to be computed (Problem) and how it is split over ranks (Scheme), as plain data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attention/layout.hpp"
#include "attention/mask.hpp"
#include "base/dtype.hpp"

namespace tessera::attention {

enum class Pass : std::uint8_t { forward, backward };
std::string_view name_of(Pass pass);

struct Problem {
  std::int64_t batch = 1;
  std::int64_t sequence = 0;      ///< queries per batch item
  std::int64_t key_sequence = 0;  ///< keys per batch item
  std::int64_t query_heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 64;   ///< of Q and K
  std::int64_t value_dim = 64;  ///< of V and O
  DType dtype = DType::f32;     ///< storage; sums are kept in accumulate_type(dtype)
  Layout layout = Layout::zigzag;
  Mask mask;
  double scale = 0;  ///< on Q K^T; 0 means 1 / sqrt(head_dim)
  double softcap = 0;
  bool sink = false;  ///< one learnable logit per query head (brief 1.4)

  double scale_factor() const;
  /// Flops of `area` unmasked pairs over all query heads: 2 GEMMs forward, 5 backward (brief 0).
  double flops(Pass pass, std::int64_t area, std::int64_t heads) const;
};

enum class SchemeKind : std::uint8_t { ring, double_ring, all_gather, ulysses, mesh, unified };
std::string_view name_of(SchemeKind kind);
/// Error(usage) with the list of names for an unknown one.
SchemeKind scheme_of(const std::string& name);

struct Scheme {
  SchemeKind kind = SchemeKind::ring;
  int a = 0, b = 0;  ///< mesh tile: a Q chunks x b KV chunks; 0 = choose by the machine model
  int inner = 0;     ///< double_ring: inner ring size
  int ulysses = 0;   ///< unified: ranks of a head group
  SchemeKind outer = SchemeKind::mesh;  ///< unified: ring or mesh
  /// ulysses: a rank's heads go through exchange, tile and exchange back in so many slices, the
  /// exchanges of one beside the tile of another; 0 = choose by the machine model.
  int slices = 1;

  std::string text() const;  ///< "mesh 4x2", "unified u2 ring"
};

/// The scheme that runs between head groups; all of them where there are none.
SchemeKind body_of(const Scheme& s);
/// A scheme that runs the mesh body; rings are meshes with one row.
bool is_mesh(const Scheme& s);
/// A scheme whose body is a ring as the mesh 1 x r that it is.
Scheme normal(Scheme s, int r);

/// Ranks as r outer chunks times u ranks of a head group: rank = outer * u + inner.
struct Split {
  int n = 1;                                ///< ranks
  int u = 1;                                ///< Ulysses degree
  int r = 1;                                ///< chunks of the sequence
  int slices = 1;                           ///< of a rank's heads: Scheme::slices
  std::int64_t q_padded = 0, k_padded = 0;  ///< per batch item
  std::vector<std::int32_t> owner;          ///< balanced layout: chunk of every piece
  int outer_of(int rank) const { return rank / u; }
  int inner_of(int rank) const { return rank % u; }
  int rank_of(int outer, int inner) const { return outer * u + inner; }
};

/// Checks that the scheme fits the problem on n ranks. Error(usage) naming the key, the value and
/// what would fit.
void validate(const Problem& problem, const Scheme& scheme, int n);
Split make_split(const Problem& problem, const Scheme& scheme, int n);

/// Query and key rows of an outer chunk, and of the shard that a rank owns.
Rows query_chunk(const Problem& p, const Split& s, int outer);
Rows key_chunk(const Problem& p, const Split& s, int outer);
Rows query_rows(const Problem& p, const Split& s, int rank);
Rows key_rows(const Problem& p, const Split& s, int rank);

/// Heads that a rank computes on: all of them without Ulysses.
struct Heads {
  Range query, kv;
};
Heads heads_of(const Problem& p, const Split& s, int inner);
/// One slice of heads.
Heads slice_of(const Heads& heads, const Split& s, int slice);

}  // namespace tessera::attention

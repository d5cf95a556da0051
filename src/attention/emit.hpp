// SPDX-License-Identifier: Apache-2.0
// The pieces that all schemes put their plans together from: bundles of buffers that travel or are
// computed on together, tiles, transfers in a ring, and the mesh body that ring, double ring, mesh
// and unified share.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "attention/context.hpp"
#include "attention/labels.hpp"
#include "plan/builder.hpp"

namespace tessera::attention {

/// Buffers that belong together, in operator-argument order:
///   queries   forward {Q}, backward {Q, dO, LSE, Delta}      keys   {K, V}
///   out       forward {O, LSE}, backward {dQ}                 dkeys  backward {dK, dV}
using Bundle = std::vector<int>;

/// One rank's plan in the making.
class Emit {
 public:
  Emit(const Context& context, int rank, plan::Plan& plan);

  const Context& c;
  const int rank, outer, inner;
  const bool backward;
  int slice = 0;  ///< of this rank's heads, the one that is emitted
  Heads heads;    ///< of the slice
  const DType storage, accumulate;
  plan::Builder b;
  int compute_queue, comm_queue;

  /// Goes on with another slice of the heads.
  void take_slice(int number);
  /// "name" with the number of the slice where there are several.
  std::string of_slice(const char* name) const;

  // Shapes of bundles for `rows` rows of a chunk; names get the suffix.
  Bundle new_queries(const std::string& suffix, std::int64_t rows);
  Bundle new_keys(const std::string& suffix, std::int64_t rows);
  Bundle new_out(const std::string& suffix, std::int64_t rows);
  Bundle new_dkeys(const std::string& suffix, std::int64_t rows);
  int tensor(const std::string& name, plan::Role role, DType type, std::int64_t rows,
             std::int64_t num_heads, std::int64_t dim);
  int statistic(const std::string& name, plan::Role role, std::int64_t rows);

  /// From here on these rows of a result of `chunk` are empty: (0, -inf) forward, 0 backward. They
  /// are cleared when something is added to them, those that a tile touches by a step right before
  /// it, which the executor can leave out where the tile can write instead of add.
  void begin(const Bundle& result, int chunk, Range rows);
  void begin(const Bundle& result, int chunk) { begin(result, chunk, all_rows(result)); }
  /// Nothing was added since begin().
  bool untouched(const Bundle& result) const { return empty_.contains(result[0]); }
  /// Clears what is untouched, for a reader.
  void settle(const Bundle& result) { touch(result, {}); }
  /// One tile; works on the rows that its mask touches and updates the results in place.
  void tile(int q_chunk, int k_chunk, const Extent& seen, const Bundle& queries, const Bundle& keys,
            const Bundle& out, const Bundle& dkeys);
  /// Adds rows of a partial result of `chunk` to another one.
  void join(const Bundle& from, const Bundle& to, int chunk, Range rows);
  /// One step for many parts: from, to, from, to, ...; none for an empty list.
  void copy(std::string_view label, std::vector<plan::Use> pairs);
  void add(std::string_view label, plan::Index index, std::vector<plan::Use> pairs);
  /// The last use becomes the sum of the others.
  void sum(std::string_view label, plan::Index index, std::vector<plan::Use> terms_and_result);

  Range all_rows(const Bundle& bundle) const { return {0, info(bundle[0]).shape[0]}; }
  std::vector<plan::Use> uses(const Bundle& bundle, plan::Access access) const;
  /// Rows of all tensors of a bundle; those of statistics are in their second dimension.
  std::vector<plan::Use> uses(const Bundle& bundle, plan::Access access, Range rows) const;
  std::int64_t bytes(const std::vector<plan::Use>& uses) const;
  const plan::Buffer& info(int id) const { return plan_.buffers[static_cast<std::size_t>(id)]; }

 private:
  struct Empty {
    int chunk;
    Range rows;
  };
  void touch(const Bundle& result, Range first);
  void clear(const Bundle& result, int chunk, const std::vector<Range>& ranges);
  void compute(std::string_view label, plan::Index index, std::string_view op,
               std::vector<plan::Use> list);

  plan::Plan& plan_;
  std::map<int, Empty> empty_;  // by first buffer: results that begin() spoke of and nobody touched
};

/// Buffers for chunks that are in flight, used again as soon as the schedule allows. Times are
/// slot numbers of the lockstep schedule.
class Pool {
 public:
  explicit Pool(std::function<Bundle(int)> make) : make_(std::move(make)) {}
  /// A bundle that nothing scheduled at `now` or later still needs, kept until slot `last`.
  const Bundle& take(int now, int last);

 private:
  struct Entry {
    Bundle bundle;
    int free_after;
  };
  std::function<Bundle(int)> make_;
  std::vector<Entry> entries_;
};

/// One ring: who is next, what the chunk at distance d (behind this rank) is, and its reach.
struct Family {
  int axis = 0;
  int size = 1;
  int next = 0, prev = 0;           ///< ranks of the program
  std::function<int(int)> chunk;    ///< distance -> chunk
  std::function<Reach(int)> reach;  ///< chunk -> how far it goes
};

/// Gradients that came in for rows of this rank's own keys.
struct Late {
  struct Piece {
    Range rows;       ///< of the own keys
    std::int64_t at;  ///< where they begin in the buffers
  };
  Bundle dkeys;
  std::vector<Piece> pieces;
};

/// Buffers of this rank's own chunks, the distance-0 members of both families. dK, dV are the sums
/// of `dkeys` and all that is `late` (gradients.hpp).
struct Home {
  Bundle queries, keys, out, dkeys;
  std::vector<Late> late = {};
};

/// Pools shared by consecutive bodies of one plan (the phases of a double ring).
struct Pools {
  explicit Pools(Emit& e);
  Pool queries, keys, out, dkeys;
};

/// The a x b tile of attention brief 2.3 with rings in both families and the given order.
/// `phase` numbers the bodies of one plan; it keeps match keys and slot times apart.
void emit_mesh(Emit& e, const Family& q, const Family& kv, Home& home, const Lockstep& order,
               Pools& pools, int phase = 0);

// One function per scheme: emits the body between this rank's own queries, keys and results.
void emit_mesh_scheme(Emit& e, Home& home, const Lockstep& order, int first_axis);
void emit_double_ring(Emit& e, Home& home, const Costs& costs, int first_axis);
void emit_all_gather(Emit& e, Home& home, int first_axis);

/// Key rows of chunk j that the rows of chunk p see, as local ranges: what all_gather sends.
std::vector<Range> needed_keys(const Context& c, int p, int j);

}  // namespace tessera::attention

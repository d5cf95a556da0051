// SPDX-License-Identifier: Apache-2.0
// The pieces that all schemes put their plans together from: bundles of buffers that travel or are
// computed on together, tiles, transfers in a ring, and the mesh body that ring, double ring, mesh
// and unified share.
#pragma once

#include <functional>
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

  /// Empty results: (0, -inf) forward, 0 backward.
  void clear_out(const Bundle& out, int chunk);
  void clear_dkeys(const Bundle& dkeys, int chunk);
  /// One tile; the results are updated in place.
  void tile(int q_chunk, int k_chunk, std::int64_t area, const Bundle& queries, const Bundle& keys,
            const Bundle& out, const Bundle& dkeys);
  /// Adds a received partial result to another one.
  void join_out(const Bundle& from, const Bundle& to, int chunk);
  void join_dkeys(const Bundle& from, const Bundle& to, int chunk);
  void copy(std::string_view label, plan::Use from, plan::Use to);
  void add(std::string_view label, plan::Index index, plan::Use from, plan::Use to);

  std::vector<plan::Use> uses(const Bundle& bundle, plan::Access access) const;
  std::int64_t bytes(const std::vector<plan::Use>& uses) const;
  const plan::Plan& plan() const { return plan_; }

 private:
  plan::Plan& plan_;
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

/// Buffers of this rank's own chunks, the distance-0 members of both families.
struct Home {
  Bundle queries, keys, out, dkeys;
};

/// Pools shared by consecutive bodies of one plan (the phases of a double ring).
struct Pools {
  explicit Pools(Emit& e);
  Pool queries, keys, out, dkeys, staging_out, staging_dkeys;
};

/// The a x b tile of attention brief 2.3 with rings in both families and the given order.
/// `phase` numbers the bodies of one plan; it keeps match keys and slot times apart.
void emit_mesh(Emit& e, const Family& q, const Family& kv, const Home& home, const Lockstep& order,
               Pools& pools, int phase = 0);

// One function per scheme: emits the body between this rank's own queries, keys and results.
void emit_mesh_scheme(Emit& e, const Home& home, const Lockstep& order, int first_axis);
void emit_double_ring(Emit& e, const Home& home, const Costs& costs, int first_axis);
void emit_all_gather(Emit& e, const Home& home, int first_axis);

/// Key rows of chunk j that the rows of chunk p see, as local ranges: what all_gather sends.
std::vector<Range> needed_keys(const Context& c, int p, int j);

}  // namespace tessera::attention

// SPDX-License-Identifier: Apache-2.0
// Schemes -> programs. The one entry through which drivers, tests and tools get plans.
#pragma once

#include "attention/context.hpp"
#include "plan/machine.hpp"
#include "plan/plan.hpp"

namespace tessera::attention {

/// Names of the buffers that a caller binds: inputs and outputs of this rank's shard.
///   forward   in q k v [sink]; out o (storage dtype), lse (accumulate dtype, [heads, rows])
///   backward  in q k v do o lse [sink]; out dq dk dv [dsink, summed over all ranks]
/// With Ulysses the statistics and the chunk tensors q.chunk, k.chunk, v.chunk, o.chunk that
/// forward saves for backward belong to the rank's head group instead (Role::saved).
namespace name {
inline constexpr const char *q = "q", *k = "k", *v = "v", *o = "o", *lse = "lse", *dout = "do",
                            *dq = "dq", *dk = "dk", *dv = "dv", *sink = "sink", *dsink = "dsink";
}

/// Times of one block and its transfers on a machine, for the greedy order.
Costs costs_of(const Problem& p, const Split& s, int a, Pass pass, const plan::Machine& machine);

/// Fills in a and b where they are 0: the divisor pair with the least makespan of the greedy order
/// on this machine, ties broken by memory (attention brief 2.6); and the slices of Ulysses, the
/// same for both passes. Other schemes come back unchanged.
Scheme choose(const Problem& p, Scheme scheme, int n, Pass pass, const plan::Machine& machine);

/// The plans of all n ranks. `scheme` must be complete (choose) and valid (validate). The order of
/// transfers follows the costs, given or those of a machine.
plan::Program make_program(const Problem& p, const Scheme& scheme, int n, Pass pass,
                           const Costs& costs);
plan::Program make_program(const Problem& p, const Scheme& scheme, int n, Pass pass,
                           const plan::Machine& machine);

/// Rows of queries and keys of the tile that a tile step works on (binding of masks at run time):
/// of both chunks the smallest range that the mask touches; of keys that were sent, all that came.
std::pair<Rows, Rows> tile_rows(const Context& c, int rank, const plan::Index& index);

}  // namespace tessera::attention

// SPDX-License-Identifier: Apache-2.0
// The two exchanges of DeepSpeed-Ulysses (attention brief 3.3): token shards with all heads on one
// side, whole chunks with a part of the heads on the other. Heads can go through in slices, the
// exchanges of one beside the tile of another. Every exchange runs in rounds of one send and one
// receive (OB-101); pieces are packed per peer, received pieces land in place.
#pragma once

#include <string>
#include <vector>

#include "attention/emit.hpp"

namespace tessera::attention {

/// A tensor that is exchanged: the shard [c, H, d] of this rank and the chunk [u c, H', d] it
/// computes on.
struct Exchanged {
  int shard = -1;
  int chunk = -1;
  bool query_heads = true;  ///< else KV heads, replicated when there are fewer than ranks
};

/// Shard -> chunk for all tensors at once, one message per peer; the heads of the emitted slice.
void emit_enter(Emit& e, const std::vector<Exchanged>& tensors, int axis, int key);

/// Rows of the chunk that are the shard of member `inner` of the head group, and, for this rank's
/// own, their place in the shard: the heads of the emitted slice.
Range shard_rows(const Emit& e, const Exchanged& x, int inner);
plan::Use own_place(const Emit& e, const Exchanged& x);

/// Chunk -> shard in three parts, so that other work can stand between them: this rank's own rows,
/// for callers that did not put them in their place yet; the messages; and putting what came in
/// into its place. Replicated KV heads are summed into the shard, which must be cleared before.
struct Outbound {
  std::vector<Exchanged> tensors;
  std::vector<int> received;
  int slice = 0;
};
void emit_own(Emit& e, const std::vector<Exchanged>& tensors);
Outbound emit_exit(Emit& e, const std::vector<Exchanged>& tensors, int axis, int key);
void emit_unpack(Emit& e, const Outbound& exit);

}  // namespace tessera::attention

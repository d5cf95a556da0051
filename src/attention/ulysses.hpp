// SPDX-License-Identifier: Apache-2.0
// The two exchanges of DeepSpeed-Ulysses (attention brief 3.3): token shards with all heads on one
// side, whole chunks with a part of the heads on the other. Every exchange runs in rounds of one
// send and one receive (OB-101); pieces are packed per peer, received pieces land in place.
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

/// Shard -> chunk for all tensors at once, one message per peer.
void emit_enter(Emit& e, const std::vector<Exchanged>& tensors, int axis, int key);
/// Chunk -> shard. Replicated KV heads are summed into the shard, which must be cleared before.
void emit_exit(Emit& e, const std::vector<Exchanged>& tensors, int axis, int key);

}  // namespace tessera::attention

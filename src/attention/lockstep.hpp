// SPDX-License-Identifier: Apache-2.0
// The greedy order of transfers and blocks on an a x b tile (attention brief 2.5): which transfer
// is next, and which ready blocks are held back to run beside it. One order for all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/problem.hpp"

namespace tessera::attention {

/// Times of one block and of one transfer of each kind, in any one unit.
struct Costs {
  double block = 1;
  double q = 1;    ///< Q chunk; backward: the bundle {Q, dO, LSE, Delta}
  double kv = 2;   ///< K and V chunk
  double out = 1;  ///< forward: running (O, LSE); backward: running dQ
  double dkv = 2;  ///< backward: running dK, dV
};

enum class Transfer : std::uint8_t { none, q, kv, out, dkv };

/// Block (s, t): the Q chunk from distance s against the KV chunk from distance t.
struct Block {
  int s = 0, t = 0;
};

/// One slot of the schedule: a transfer, and the blocks that run meanwhile.
struct Slot {
  Transfer op = Transfer::none;
  int distance = 0;  ///< q, kv: the distance received; out, dkv: the distance sent
  std::vector<Block> blocks;
};

struct Lockstep {
  std::vector<Slot> slots;
  double makespan = 0;     ///< of the lockstep model: sum over slots of max(transfer, blocks)
  double lower_bound = 0;  ///< max(total compute, total communication)
};

/// `eager`: runs every ready block at once instead of holding back (for comparison).
Lockstep lockstep(int a, int b, Pass pass, const Costs& costs, bool eager = false);

}  // namespace tessera::attention

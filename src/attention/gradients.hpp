// SPDX-License-Identifier: Apache-2.0
// How gradients leave the body of a plan: dQ, and the sums of this rank's own dK, dV and of what
// came in for them, in place or straight into other buffers of another element type.
#pragma once

#include <array>
#include <vector>

#include "attention/emit.hpp"

namespace tessera::attention {

/// Adds all that came in late to home.dkeys.
void emit_join_late(Emit& e, Home& home);

/// Rows of dQ, dK or dV, and where their values go.
struct Store {
  Range rows;
  plan::Use to;
};
/// Writes the gradients, `stores` in the order dQ, dK, dV: one step that copies all rows that have
/// one term, and a sum for each stretch of rows that have the same several ones.
void emit_store_gradients(Emit& e, Home& home, const std::array<std::vector<Store>, 3>& stores);

}  // namespace tessera::attention

// SPDX-License-Identifier: Apache-2.0
// The dispatch solver of the balanced layout (attention brief 3.10, 6.5 use (1)): which chunk owns
// which piece of the sequence, so that all chunks have equal work under the mask.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/mask.hpp"

namespace tessera::attention {

/// Owner of every piece; all of the `chunks` get the same number of pieces. Greedy: the heaviest
/// piece that is left goes to the lightest chunk that has room, O(m log m) over m pieces.
/// `work` is the unmasked pairs of each piece; its size is a multiple of `chunks`.
std::vector<std::int32_t> dispatch(const std::vector<std::int64_t>& work, int chunks);

/// Unmasked pairs of each of `per_item` equal pieces of every batch item.
std::vector<std::int64_t> piece_work(const Mask& mask, std::int64_t batch, std::int64_t sequence,
                                     std::int64_t padded_sequence, std::int64_t per_item);

}  // namespace tessera::attention

// SPDX-License-Identifier: Apache-2.0
// Inputs from a seed instead of a file: counter-based random numbers (Philox), so that an element
// has the same value however the rows are split over ranks.
#pragma once

#include <cstdint>

#include "attention/session.hpp"

namespace tessera::attention {

/// Normally distributed q, k, v, do and sink. Any rank can make any row; the rows are shared by
/// this many threads.
Fill synthetic(std::uint64_t seed, int num_threads = 1);

}  // namespace tessera::attention

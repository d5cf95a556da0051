// SPDX-License-Identifier: Apache-2.0
// Bytes that every rank must send, by formula: attention brief 2.4 and section 4 in exact form,
// with the statistics terms, and for sparse masks the counting argument of brief 6.5. Computed from
// the problem and the scheme alone; plans are not looked at, so that the two can be compared.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/problem.hpp"

namespace tessera::attention {

/// Payload bytes per rank; `dense`: as if every tile had visible pairs (the published closed
/// forms).
std::vector<std::int64_t> formula_bytes(const Problem& p, const Scheme& s, int n, Pass pass,
                                        bool dense = false);

/// Elements of one unit U = N D / n, padded rows counted.
double unit_elements(const Problem& p, const Scheme& s, int n);

}  // namespace tessera::attention

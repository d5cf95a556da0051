// SPDX-License-Identifier: Apache-2.0
// Definitions of bandwidth figures, as in nccl-tests doc/PERFORMANCE.md: the algorithm bandwidth is
// payload over time; the bus bandwidth scales it to what each rank's link must carry. Neither knows
// the topology. 1 GB = 1e9 bytes.
#pragma once

#include <string_view>

namespace tessera::trace {

enum class Collective { send_recv, all_reduce, all_gather, reduce_scatter, all_to_all };

/// GB/s; 0 when no time has passed.
inline double algorithm_gb_s(double bytes, double seconds) {
  return seconds > 0 ? bytes / seconds * 1e-9 : 0;
}

/// Bus over algorithm bandwidth on n ranks; a single rank moves nothing.
inline double bus_factor(Collective kind, int n) {
  if (n <= 1) return 0;
  const double others = (n - 1.0) / n;
  switch (kind) {
    case Collective::send_recv:
      return 1;
    case Collective::all_reduce:
      return 2 * others;
    default:
      return others;
  }
}

inline double bus_gb_s(Collective kind, double bytes, double seconds, int n) {
  return algorithm_gb_s(bytes, seconds) * bus_factor(kind, n);
}

/// One line for legends and tables.
inline constexpr std::string_view bandwidth_definition =
    "bus GB/s = bytes / time * 1e-9 * (2(n-1)/n all-reduce, (n-1)/n gather, scatter, all-to-all, "
    "1 send-receive)";

}  // namespace tessera::trace

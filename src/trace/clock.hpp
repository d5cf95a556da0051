// SPDX-License-Identifier: Apache-2.0
// One time base for all ranks. Every rank's steady clock starts somewhere; its offset to rank 0 is
// measured by ping-pong (Cristian's method) and known only within half of the shortest round trip.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trace/event.hpp"

namespace tessera::trace {

/// One ping-pong: sent and received by the clock of the reference, answered by that of the rank.
struct ClockSample {
  double sent_s = 0, remote_s = 0, received_s = 0;
};

struct ClockOffset {
  double offset_s = 0;       ///< clock of the rank minus clock of the reference
  double uncertainty_s = 0;  ///< the true offset is within +- this
};

/// From the sample with the shortest round trip. Error(usage) without samples or when none has a
/// round trip of at least 0.
ClockOffset estimate_offset(std::span<const ClockSample> samples);

/// What one rank recorded, by its own clock.
struct RankPart {
  int rank = 0;
  std::string name;  ///< "rank 3 (host a)"
  std::vector<std::string> queues;
  std::vector<Event> events;         ///< Event::rank is set by merge()
  std::optional<ClockOffset> clock;  ///< rank 0, the reference, has offset 0
};

/// Brings the parts to the clock of the reference. Error(usage) when a rank has no clock offset
/// (its times mean nothing to the others), or two parts name the same rank.
Timeline merge(std::string title, std::vector<RankPart> parts);

/// Seconds since `origin_ns`. Subtracts as integers: a clock that counts nanoseconds since 1970
/// does not fit into a double.
inline double seconds_since(std::int64_t origin_ns, std::int64_t time_ns) {
  return static_cast<double>(time_ns - origin_ns) * 1e-9;
}

}  // namespace tessera::trace

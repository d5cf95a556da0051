// SPDX-License-Identifier: Apache-2.0
// Lays the events of a timeline out on tracks (threads of the viewer) so that any two of one track
// are apart or nested: the trace format forbids crossing, and viewers cut or drop what crosses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/event.hpp"

namespace tessera::trace {

struct PlacedEvent {
  const Event* event = nullptr;
  std::int64_t begin_ns = 0, end_ns = 0;  ///< since the first event of the timeline
  int track = 0;                          ///< of its rank
};

struct Tracks {
  std::vector<PlacedEvent> events;              ///< by begin, then longer first
  std::vector<std::vector<std::string>> names;  ///< per rank: "comm", "comm (2)"
};

/// Queues keep the order of their numbers; a crossing event goes to an extra track of its queue.
/// The timeline must outlive the result. Error(invalid) on an event that ends before it begins or
/// has no finite time, and on a negative rank or queue.
Tracks lay_out(const Timeline& timeline);

}  // namespace tessera::trace

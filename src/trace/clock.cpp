// SPDX-License-Identifier: Apache-2.0
// The message cannot have been answered before it was sent or after it came back: the offset lies
// within half a round trip of the middle.
#include "trace/clock.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.hpp"

namespace tessera::trace {

ClockOffset estimate_offset(std::span<const ClockSample> samples) {
  const ClockSample* best = nullptr;
  auto trip = [](const ClockSample& s) { return s.received_s - s.sent_s; };
  for (const ClockSample& s : samples) {
    if (trip(s) >= 0 && (!best || trip(s) < trip(*best))) best = &s;
  }
  if (!best) {
    throw Error(Exit::usage, fmt::format("no usable clock sample among {}", samples.size()));
  }
  return {best->remote_s - (best->sent_s + best->received_s) / 2, trip(*best) / 2};
}

Timeline merge(std::string title, std::vector<RankPart> parts) {
  std::sort(parts.begin(), parts.end(),
            [](const RankPart& a, const RankPart& b) { return a.rank < b.rank; });
  Timeline timeline;
  timeline.title = std::move(title);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    RankPart& part = parts[p];
    if (part.rank != static_cast<int>(p)) {
      throw Error(Exit::usage,
                  fmt::format("parts of a trace must be ranks 0 to {}, each once; place {} has "
                              "rank {}",
                              parts.size() - 1, p, part.rank));
    }
    if (!part.clock) {
      throw Error(Exit::usage, fmt::format("rank {} has no clock offset", part.rank),
                  "measure it by ping-pong with rank 0 before the trace is merged");
    }
    timeline.ranks.push_back(std::move(part.name));
    timeline.queues.push_back(std::move(part.queues));
    for (Event& event : part.events) {
      event.rank = part.rank;
      event.begin_s -= part.clock->offset_s;
      event.end_s -= part.clock->offset_s;
      timeline.events.push_back(std::move(event));
    }
  }
  return timeline;
}

}  // namespace tessera::trace

// SPDX-License-Identifier: Apache-2.0
// First fit: an event goes to the first track of its queue where it is apart from, or inside, the
// events that are still open.
#include "trace/tracks.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/error.hpp"

namespace tessera::trace {

namespace {

void require_sane(const Event& e) {
  const bool timed = std::isfinite(e.begin_s) && std::isfinite(e.end_s) && e.end_s >= e.begin_s;
  if (timed && e.rank >= 0 && e.queue >= 0) return;
  throw Error(Exit::invalid, fmt::format("trace event '{}' of rank {} queue {}: [{}, {}) s", e.name,
                                         e.rank, e.queue, e.begin_s, e.end_s));
}

std::vector<PlacedEvent> sorted_events(const Timeline& timeline) {
  double origin = 0;
  for (const Event& e : timeline.events) {
    require_sane(e);
    origin = &e == timeline.events.data() ? e.begin_s : std::min(origin, e.begin_s);
  }
  std::vector<PlacedEvent> events;
  events.reserve(timeline.events.size());
  for (const Event& e : timeline.events) {
    events.push_back(
        {&e, std::llround((e.begin_s - origin) * 1e9), std::llround((e.end_s - origin) * 1e9), 0});
  }
  std::stable_sort(events.begin(), events.end(), [](const PlacedEvent& a, const PlacedEvent& b) {
    return std::pair(a.begin_ns, -a.end_ns) < std::pair(b.begin_ns, -b.end_ns);
  });
  return events;
}

using OpenEnds = std::vector<std::int64_t>;  // of nested events, outermost first

/// Puts [begin, end) onto the track if it fits.
bool fits(OpenEnds& open, std::int64_t begin, std::int64_t end) {
  while (!open.empty() && open.back() <= begin) open.pop_back();
  if (!open.empty() && open.back() < end) return false;
  open.push_back(end);
  return true;
}

std::string queue_name(const Timeline& timeline, int rank, int queue) {
  const auto& queues = timeline.queues;
  const bool known =
      rank < static_cast<int>(queues.size()) && queue < static_cast<int>(queues[rank].size());
  return known ? queues[rank][queue] : fmt::format("queue {}", queue);
}

}  // namespace

Tracks lay_out(const Timeline& timeline) {
  Tracks result;
  result.events = sorted_events(timeline);
  std::map<std::pair<int, int>, std::vector<OpenEnds>> layers;  // by rank and queue
  std::size_t num_ranks = timeline.ranks.size();
  for (PlacedEvent& placed : result.events) {
    auto& queue = layers[{placed.event->rank, placed.event->queue}];
    std::size_t layer = 0;
    while (layer < queue.size() && !fits(queue[layer], placed.begin_ns, placed.end_ns)) ++layer;
    if (layer == queue.size()) queue.push_back({placed.end_ns});
    placed.track = static_cast<int>(layer);
    num_ranks = std::max(num_ranks, static_cast<std::size_t>(placed.event->rank) + 1);
  }
  result.names.resize(num_ranks);
  std::map<std::pair<int, int>, int> first_track;
  for (const auto& [place, queue] : layers) {
    auto& names = result.names[place.first];
    first_track[place] = static_cast<int>(names.size());
    const std::string name = queue_name(timeline, place.first, place.second);
    for (std::size_t layer = 0; layer < queue.size(); ++layer) {
      names.push_back(layer == 0 ? name : fmt::format("{} ({})", name, layer + 1));
    }
  }
  for (PlacedEvent& placed : result.events) {
    placed.track += first_track[{placed.event->rank, placed.event->queue}];
  }
  return result;
}

}  // namespace tessera::trace

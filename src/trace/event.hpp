// SPDX-License-Identifier: Apache-2.0
// A timeline as data: measured by the executor or computed by the simulator, in one format.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::trace {

enum class Category : std::uint8_t { compute, comm, copy, wait };

/// One interval on a queue of a rank. Times are seconds on the common clock of the timeline.
struct Event {
  std::int32_t rank = 0;
  std::int32_t queue = 0;
  std::int32_t step = -1;  ///< id in the rank's plan; -1: not a step
  Category category = Category::compute;
  std::string name;    ///< label, "attn.fwd.tile"
  std::string detail;  ///< "q 3, k 7"
  double begin_s = 0, end_s = 0;
  std::int64_t bytes = 0;  ///< payload of a message
  std::int32_t peer = -1;
  std::int64_t flow = 0;    ///< same number on a send and its receive, > 0; 0: no arrow
  bool flow_start = false;  ///< true on the sending side
};

struct Timeline {
  std::string title;
  std::vector<std::string> ranks;                ///< process names, "rank 3 (host a)"
  std::vector<std::vector<std::string>> queues;  ///< per rank
  std::vector<Event> events;
};

}  // namespace tessera::trace

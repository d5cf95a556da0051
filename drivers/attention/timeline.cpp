// SPDX-License-Identifier: Apache-2.0
#include "drivers/attention/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tessera::drivers {

namespace {

constexpr double gap_s = 1e-4;  // between two runs of one timeline

std::string detail(const plan::Index& i) {
  if (i.kind == plan::Index::Kind::tile) return fmt::format("q {}, k {}", i.i, i.j);
  return i.kind == plan::Index::Kind::chunk ? fmt::format("chunk {}", i.i) : std::string();
}

/// The same positive number on both ends of a message, different for different messages.
std::int64_t flow_of(const plan::Program& p, int rank, const plan::Step& s) {
  const auto n = static_cast<std::int64_t>(p.plans.size());
  const bool send = s.kind == plan::StepKind::send;
  const std::int64_t from = send ? rank : s.comm.peer, to = send ? s.comm.peer : rank;
  return ((s.comm.key * n + from) * n + to) * static_cast<std::int64_t>(p.axes.size()) +
         s.comm.axis + 1;
}

/// A timeline without events whose tracks are those of the program.
trace::Timeline empty_timeline(const plan::Program& p) {
  trace::Timeline t;
  t.title = p.name;
  for (std::size_t r = 0; r < p.plans.size(); ++r) {
    t.ranks.push_back(fmt::format("rank {}", r));
    auto& queues = t.queues.emplace_back();
    for (const plan::Queue& q : p.plans[r].queues) queues.push_back(q.name);
  }
  return t;
}

trace::Event event_of(const plan::Program& p, int rank, int step, double begin, double end) {
  const plan::Step& s =
      p.plans[static_cast<std::size_t>(rank)].steps[static_cast<std::size_t>(step)];
  const bool message = s.kind == plan::StepKind::send || s.kind == plan::StepKind::recv;
  trace::Event e;
  e.rank = rank;
  e.queue = s.queue;
  e.step = step;
  e.category = message || s.kind == plan::StepKind::all_reduce ? trace::Category::comm
                                                               : trace::Category::compute;
  e.name = std::string(s.label);
  if (message) e.name += s.kind == plan::StepKind::send ? " send" : " recv";
  e.detail = detail(s.index);
  e.begin_s = begin;
  e.end_s = end;
  e.bytes = s.comm.bytes;
  e.peer = s.comm.peer;
  e.flow = message ? flow_of(p, rank, s) : 0;
  e.flow_start = s.kind == plan::StepKind::send;
  return e;
}

}  // namespace

trace::Timeline simulated_timeline(const plan::Program& p, const plan::SimulateResult& times) {
  trace::Timeline t = empty_timeline(p);
  for (std::size_t r = 0; r < p.plans.size(); ++r)
    for (std::size_t i = 0; i < p.plans[r].steps.size(); ++i) {
      const plan::StepTime& s = times.ranks[r].steps[i];
      t.events.push_back(
          event_of(p, static_cast<int>(r), static_cast<int>(i), s.posted_s, s.end_s));
    }
  return t;
}

trace::Timeline measured_timeline(const plan::Program& p, const exec::Measured& run,
                                  const std::vector<trace::ClockOffset>& clocks,
                                  parallel::Communicator& comm) {
  const std::vector<std::int64_t> starts = comm.all_gather(run.start_ns);
  const std::string mine(reinterpret_cast<const char*>(run.steps.data()),
                         run.steps.size() * sizeof(exec::Span));
  const std::vector<std::string> all = comm.gather(mine, 0);
  if (comm.rank() != 0) return {};
  trace::Timeline tracks = empty_timeline(p);
  std::vector<trace::RankPart> parts(all.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    parts[r] = {static_cast<int>(r), tracks.ranks[r], tracks.queues[r], {}, clocks[r]};
    const double begin = trace::seconds_since(starts[0], starts[r]);
    for (std::size_t i = 0; i < all[r].size() / sizeof(exec::Span); ++i) {
      exec::Span s;
      std::memcpy(&s, all[r].data() + i * sizeof s, sizeof s);
      parts[r].events.push_back(event_of(p, static_cast<int>(r), static_cast<int>(i),
                                         begin + s.begin_s, begin + s.end_s));
    }
  }
  trace::Timeline t = trace::merge(p.name, std::move(parts));
  double first = 0;  // rank 0 starts at 0, another one may have been earlier
  for (const trace::Event& e : t.events) first = std::min(first, e.begin_s);
  for (trace::Event& e : t.events) {
    e.begin_s -= first;
    e.end_s -= first;
  }
  return t;
}

void append(trace::Timeline& t, const trace::Timeline& run) {
  double start = 0;
  std::int64_t flow = 0;
  for (const trace::Event& e : t.events) {
    start = std::max(start, e.end_s + gap_s);
    flow = std::max(flow, e.flow);
  }
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    if (r == t.ranks.size()) {
      t.ranks.push_back(run.ranks[r]);
      t.queues.emplace_back();
    }
    for (std::size_t q = t.queues[r].size(); q < run.queues[r].size(); ++q)
      t.queues[r].push_back(run.queues[r][q]);
  }
  for (trace::Event e : run.events) {
    e.begin_s += start;
    e.end_s += start;
    if (e.flow > 0) e.flow += flow;
    t.events.push_back(std::move(e));
  }
}

}  // namespace tessera::drivers

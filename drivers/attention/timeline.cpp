// SPDX-License-Identifier: Apache-2.0
#include "drivers/attention/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tessera::drivers {

namespace {

constexpr double gap_s = 1e-4;  // between two runs of one timeline

double end_of(const trace::Timeline& t) {
  double end = 0;
  for (const trace::Event& e : t.events) end = std::max(end, e.end_s);
  return t.events.empty() ? 0 : end + gap_s;
}

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

void name_tracks(trace::Timeline& t, const plan::Program& p) {
  for (std::size_t r = t.ranks.size(); r < p.plans.size(); ++r)
    t.ranks.push_back(fmt::format("rank {}", r));
  t.queues.resize(std::max(t.queues.size(), p.plans.size()));
  for (std::size_t r = 0; r < p.plans.size(); ++r)
    for (std::size_t q = t.queues[r].size(); q < p.plans[r].queues.size(); ++q)
      t.queues[r].push_back(p.plans[r].queues[q].name);
}

/// Messages of runs that follow each other get flows of their own.
std::int64_t last_flow(const trace::Timeline& t) {
  std::int64_t most = 0;
  for (const trace::Event& e : t.events) most = std::max(most, e.flow);
  return most;
}

struct Placed {
  double start;
  std::int64_t flow;
};

void add_event(trace::Timeline& t, const plan::Program& p, int rank, int step, double begin,
               double end, Placed at) {
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
  e.begin_s = at.start + begin;
  e.end_s = at.start + end;
  e.bytes = s.comm.bytes;
  e.peer = s.comm.peer;
  e.flow = message ? at.flow + flow_of(p, rank, s) : 0;
  e.flow_start = s.kind == plan::StepKind::send;
  t.events.push_back(std::move(e));
}

}  // namespace

void append_simulated(trace::Timeline& t, const plan::Program& p,
                      const plan::SimulateResult& times) {
  const Placed at{end_of(t), last_flow(t)};
  name_tracks(t, p);
  for (std::size_t r = 0; r < p.plans.size(); ++r)
    for (std::size_t i = 0; i < p.plans[r].steps.size(); ++i) {
      const plan::StepTime& s = times.ranks[r].steps[i];
      add_event(t, p, static_cast<int>(r), static_cast<int>(i), s.posted_s, s.end_s, at);
    }
}

void append_measured(trace::Timeline& t, const plan::Program& p, const exec::Measured& run,
                     const std::vector<trace::ClockOffset>& clocks, parallel::Communicator& comm) {
  const std::vector<std::int64_t> starts = comm.all_gather(run.start_ns);
  const std::string mine(reinterpret_cast<const char*>(run.steps.data()),
                         run.steps.size() * sizeof(exec::Span));
  const std::vector<std::string> all = comm.gather(mine, 0);
  if (comm.rank() != 0) return;
  std::vector<double> begin(all.size());
  for (std::size_t r = 0; r < all.size(); ++r)
    begin[r] = trace::seconds_since(starts[0], starts[r]) - clocks[r].offset_s;
  const double first = *std::min_element(begin.begin(), begin.end());
  const double start = end_of(t);
  const std::int64_t flow = last_flow(t);
  name_tracks(t, p);
  for (std::size_t r = 0; r < all.size(); ++r) {
    std::vector<exec::Span> spans(all[r].size() / sizeof(exec::Span));
    std::memcpy(spans.data(), all[r].data(), all[r].size());
    for (std::size_t i = 0; i < spans.size(); ++i)
      add_event(t, p, static_cast<int>(r), static_cast<int>(i), spans[i].begin_s, spans[i].end_s,
                {start + begin[r] - first, flow});
  }
}

}  // namespace tessera::drivers

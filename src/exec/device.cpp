// SPDX-License-Identifier: Apache-2.0
#include "exec/device.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <thread>

#include "memory/cuda.hpp"
#include "trace/intervals.hpp"

namespace tessera::exec {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

parallel::Message::Kind kind_of(plan::StepKind kind) {
  if (kind == plan::StepKind::send) return parallel::Message::Kind::send;
  return kind == plan::StepKind::recv ? parallel::Message::Kind::recv
                                      : parallel::Message::Kind::all_reduce;
}

}  // namespace

std::vector<Launch> launch_order(const plan::Plan& plan, const std::vector<QueueSteps>& queues) {
  std::vector<char> taken(plan.steps.size());
  std::vector<std::size_t> next(queues.size());
  std::vector<Launch> out;
  const auto ready = [&](const QueueSteps& q, Unit unit) {
    for (std::size_t i = unit.begin; i < unit.end; ++i)
      for (const std::int32_t a : plan.after(plan.steps[static_cast<std::size_t>(q.steps[i])]))
        if (!taken[static_cast<std::size_t>(a)]) return false;
    return true;
  };
  while (true) {
    std::size_t best = queues.size();
    std::int32_t first = std::numeric_limits<std::int32_t>::max();
    for (std::size_t q = 0; q < queues.size(); ++q) {
      if (next[q] == queues[q].units.size()) continue;
      const Unit unit = queues[q].units[next[q]];
      const std::int32_t step = queues[q].steps[unit.begin];
      if (step < first && ready(queues[q], unit)) best = q, first = step;
    }
    if (best == queues.size()) break;
    const Unit unit = queues[best].units[next[best]];
    for (std::size_t i = unit.begin; i < unit.end; ++i)
      taken[static_cast<std::size_t>(queues[best].steps[i])] = true;
    out.push_back({best, next[best]++});
  }
  for (std::size_t q = 0; q < queues.size(); ++q)
    if (next[q] < queues[q].units.size())
      throw std::logic_error("a plan whose queues wait for each other in a circle");
  return out;
}

Executor::Device::Device(Prepared& p, DeviceRun& options, Budget& budget)
    : p_(p), options_(options), begin_(true), end_(true) {
  std::size_t num_compute = 0, num_comm = 0;
  for (const QueueSteps& q : p.queues) {
    std::deque<memory::Stream>& pool = q.comm ? options.comm : options.compute;
    const std::size_t number = q.comm ? num_comm++ : num_compute++;
    if (number == pool.size())
      pool.emplace_back(q.comm ? memory::Stream::Priority::high : memory::Stream::Priority::normal);
    streams_.push_back(&pool[number]);
    second_.push_back(nullptr);
    joins_.emplace_back();
  }
  for (std::size_t i = 0; i < p.calls.size(); ++i)
    if (p.chosen[i])
      p.calls[i].stream = streams_[static_cast<std::size_t>(p.plan.steps[i].queue)]->handle();
  p.tune();
  p.fuse();
  for (std::size_t i = 0; i < p.calls.size(); ++i)
    if (p.chosen[i] && p.chosen[i]->prepare) p.chosen[i]->prepare(p.calls[i]);
  load();
  order(budget);
  choose_lanes();
}

/// Runs every compute step once. A kernel is loaded at its first launch, which may wait for an idle
/// device: never, behind a gate that only the launching thread opens. What the steps write, a run
/// writes anew.
void Executor::Device::load() {
  for (std::size_t i = 0; i < p_.calls.size(); ++i)
    if (p_.chosen[i]) p_.chosen[i]->run(p_.calls[i]);
  for (const memory::Stream* s : streams_) memory::synchronize(s->handle());
}

/// Each event is recorded before a stream is told to wait for it.
void Executor::Device::order(Budget& budget) {
  std::vector<int> entry_of(p_.plan.steps.size(), -1);
  std::vector<char> awaited;
  std::vector<parallel::MessageUnit> units;
  const bool in_turn = options_.transport && options_.transport->one_at_a_time();
  int last = -1;  // unit of messages
  for (const Launch& launch : launch_order(p_.plan, p_.queues)) {
    const QueueSteps& q = p_.queues[launch.queue];
    const Unit unit = q.units[launch.unit];
    Entry e{&q, unit, units.size(), {}, {}, {}, {}, {}, {}, {}, {}, {}};
    for (std::size_t i = unit.begin; i < unit.end; ++i) {
      for (const std::int32_t a : p_.plan.after(p_.step(q.steps[i]))) {
        const auto on = static_cast<std::size_t>(entry_of[static_cast<std::size_t>(a)]);
        if (entries_[on].queue == &q) continue;
        e.waits.push_back(static_cast<int>(on));
        awaited[on] = true;
      }
    }
    for (std::size_t i = unit.begin; i < unit.end; ++i)
      entry_of[static_cast<std::size_t>(q.steps[i])] = static_cast<int>(entries_.size());
    if (q.comm) {
      if (in_turn && last >= 0 && entries_[static_cast<std::size_t>(last)].queue != &q) {
        e.waits.push_back(last);
        awaited[static_cast<std::size_t>(last)] = true;
      }
      last = static_cast<int>(entries_.size());
      units.push_back({q.queue, messages_of(q, unit)});
    }
    entries_.push_back(std::move(e));
    awaited.push_back(false);
  }
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (awaited[i]) entries_[i].finished.emplace();
  if (options_.transport) route_ = options_.transport->open(std::move(units), budget);
}

/// Entries of a queue stand in its order.
void Executor::Device::choose_lanes() {
  std::size_t number = 0;
  for (const QueueSteps& q : p_.queues) {
    if (q.comm) continue;
    std::vector<Entry*> entries;
    std::vector<std::int32_t> steps;
    std::vector<Cut> cuts;
    for (Entry& e : entries_) {
      // What is left out does nothing, but who waits for it waits for all before it.
      if (e.queue != &q || (p_.skipped[step_of(e)] && !e.finished)) continue;
      entries.push_back(&e);
      steps.push_back(q.steps[e.unit.begin]);
      cuts.push_back(cut_of(e));
    }
    const std::vector<LaneStep> lanes = lanes_of(p_.plan, steps, cuts, options_.two_lanes_from);
    const std::size_t second_number = number++;
    if (std::ranges::none_of(lanes, &LaneStep::split)) continue;
    while (options_.second.size() <= second_number) options_.second.emplace_back();
    const memory::Stream& second = options_.second[second_number];
    second_[static_cast<std::size_t>(q.queue)] = &second;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      Entry& e = *entries[i];
      e.lane = lanes[i];
      e.cut = cuts[i];
      if (e.lane.join) e.join.emplace();
      if (e.lane.fork) e.fork.emplace();
      if (!e.lane.split) continue;
      if (e.finished) e.half_finished.emplace();
      const ops::Implementation& chosen = *p_.chosen[step_of(e)];
      if (chosen.prepare) chosen.prepare(half_of(p_.calls[step_of(e)], e.cut, 1, second.handle()));
    }
  }
}

Cut Executor::Device::cut_of(const Entry& e) const {
  const std::size_t i = step_of(e);
  const bool may = p_.chosen[i] && p_.chosen[i]->cut && !p_.skipped[i];
  return may ? p_.chosen[i]->cut(p_.calls[i]) : Cut{};
}

std::vector<parallel::Message> Executor::Device::messages_of(const QueueSteps& queue,
                                                             Unit unit) const {
  std::vector<parallel::Message> out;
  for (std::size_t i = unit.begin; i < unit.end; ++i) {
    const plan::Step& s = p_.step(queue.steps[i]);
    for (const TensorRef& t : p_.parts[static_cast<std::size_t>(queue.steps[i])])
      out.push_back(
          {kind_of(s.kind), t.data, t.count(), t.dtype, s.comm.peer, p_.tag_of(s), s.comm.axis});
  }
  return out;
}

/// Makes the run known to the watchdog, also when it ends by an exception.
class Executor::Device::Registration {
 public:
  explicit Registration(Device& run) : watchdog_(run.p_.watchdog) {
    if (watchdog_) watchdog_->describe([&run] { return run.waiting_for(); });
  }
  ~Registration() {
    if (!watchdog_) return;
    watchdog_->beat();
    watchdog_->describe({});
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  parallel::Watchdog* watchdog_;
};

Measured Executor::Device::run(bool profile) {
  const Registration registration(*this);
  Measured out;
  if (profile) make_marks();
  const Clock::time_point start = Clock::now();
  out.start_ns = std::chrono::nanoseconds(start.time_since_epoch()).count();
  launch(profile);
  out.launch_s = seconds_since(start);
  wait();
  // After the first run, not before the second: a rank that captures longer would hold up others
  // whose clock runs.
  if (options_.graph && !graph_) capture();
  out.seconds = memory::Event::seconds_between(begin_, end_);
  if (profile) read_marks(out);
  return out;
}

void Executor::Device::launch(bool profile) {
  void* origin = streams_.front()->handle();
  begin_.record(origin);
  if (graph_ && !profile) {
    graph_->launch(origin);
    for (std::size_t axis = 0; axis < sent_by_graph_.size(); ++axis)
      p_.comm.count(static_cast<int>(axis), sent_by_graph_[axis]);
  } else {
    enqueue(profile);
  }
  end_.record(origin);
}

/// What a graph sends is counted when it is captured; each launch counts the same again.
void Executor::Device::capture() {
  const std::vector<std::int64_t> before = p_.comm.bytes_sent();
  graph_.emplace(streams_.front()->handle(), [this] { enqueue(false); });
  sent_by_graph_ = p_.comm.bytes_sent();
  for (std::size_t axis = 0; axis < sent_by_graph_.size(); ++axis) {
    sent_by_graph_[axis] -= axis < before.size() ? before[axis] : 0;
    p_.comm.count(static_cast<int>(axis), -sent_by_graph_[axis]);
  }
}

void Executor::Device::enqueue(bool profile) {
  fork_.record(streams_.front()->handle());
  for (std::size_t q = 1; q < streams_.size(); ++q) streams_[q]->wait(fork_);
  for (Entry& e : entries_) enqueue(e, profile);
  for (std::size_t q = 0; q < streams_.size(); ++q) {
    if (!second_[q] || profile) continue;
    joins_[q].record(second_[q]->handle());
    streams_[q]->wait(joins_[q]);
  }
  for (std::size_t q = 1; q < streams_.size(); ++q) {
    joins_[q].record(streams_[q]->handle());
    streams_.front()->wait(joins_[q]);
  }
}

void Executor::Device::enqueue(Entry& e, bool profile) {
  const plan::Step& first = p_.step(e.queue->steps[e.unit.begin]);
  const memory::Mark mark(fmt::format("{} {} {}", first.label, first.index.i, first.index.j));
  const std::size_t q = queue_of(e);
  const bool split = e.lane.split && !profile;
  if (e.join && !profile) {
    e.join->record(second_[q]->handle());
    streams_[q]->wait(*e.join);
  }
  if (e.fork && !profile) {
    e.fork->record(stream_of(e));
    second_[q]->wait(*e.fork);
  }
  wait_for(e, *streams_[q], profile);
  if (split) wait_for(e, *second_[q], profile);
  if (profile) e.begin_mark->record(stream_of(e));
  if (!e.queue->comm) {
    compute(e, split);
  } else if (route_) {
    route_->start(e.transfer, stream_of(e));
  }
  if (profile) e.end_mark->record(stream_of(e));
  if (e.finished) e.finished->record(stream_of(e));
  if (e.half_finished && !profile) e.half_finished->record(second_[q]->handle());
}

void Executor::Device::wait_for(const Entry& e, const memory::Stream& stream, bool profile) const {
  for (const int i : e.waits) {
    const Entry& on = entries_[static_cast<std::size_t>(i)];
    stream.wait(*on.finished);
    if (on.half_finished && !profile) stream.wait(*on.half_finished);
  }
}

void Executor::Device::compute(const Entry& e, bool split) {
  const std::size_t i = step_of(e);
  if (p_.skipped[i]) return;
  const auto& run = p_.chosen[i]->run;
  if (!split) return run(p_.calls[i]);
  run(half_of(p_.calls[i], e.cut, 0, stream_of(e)));
  run(half_of(p_.calls[i], e.cut, 1, second_[queue_of(e)]->handle()));
}

void Executor::Device::wait() {
  for (int turns = 0; !end_.done(); ++turns) {
    if (route_) route_->progress();
    // Short passes are waited for closely; a long one leaves the core to others.
    if (turns > 10000)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    else
      sched_yield();
  }
}

void Executor::Device::make_marks() {
  for (Entry& e : entries_)
    if (!e.begin_mark) e.begin_mark.emplace(true), e.end_mark.emplace(true);
}

void Executor::Device::read_marks(Measured& out) const {
  out.steps.resize(p_.plan.steps.size());
  std::vector<trace::Interval> busy, moving;
  for (const Entry& e : entries_) {
    const Span span{memory::Event::seconds_between(begin_, *e.begin_mark),
                    memory::Event::seconds_between(begin_, *e.end_mark)};
    for (std::size_t i = e.unit.begin; i < e.unit.end; ++i)
      out.steps[static_cast<std::size_t>(e.queue->steps[i])] = span;
    (e.queue->comm ? moving : busy).push_back({span.begin_s, span.end_s});
  }
  busy = trace::united(std::move(busy));
  moving = trace::united(std::move(moving));
  out.compute_s = trace::length(busy);
  out.exposed_s = trace::length(moving) - trace::length(trace::common(busy, moving));
}

/// Read by the watchdog thread.
std::string Executor::Device::waiting_for() const {
  return fmt::format(
      "a pass of {} steps on {} device queues{}", p_.plan.steps.size(), streams_.size(),
      options_.transport ? fmt::format(", transfers by {}", options_.transport->name())
                         : std::string());
}

}  // namespace tessera::exec

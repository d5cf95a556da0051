// SPDX-License-Identifier: Apache-2.0
#include "exec/device.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <chrono>
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

Executor::Device::Device(Prepared& p, DeviceRun& options, Budget& budget)
    : p_(p), options_(options), begin_(true), end_(true) {
  budget.free_kept();  // what this plan had no use for; routes, graphs and cuDNN take their own
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
  order();
  load();
  open_route(budget);
}

/// Runs every compute step once, and the halves of those that are split. A kernel is loaded at its
/// first launch, which may wait for an idle device: never, behind a gate that only the launching
/// thread opens. What the steps write, a run writes anew.
void Executor::Device::load() {
  for (const Entry& e : entries_) {
    if (p_.queues[e.queue].comm) continue;
    compute(e, false);
    if (e.lane.split) compute(e, true);
  }
  for (const auto& streams : {streams_, second_})
    for (const memory::Stream* s : streams)
      if (s) memory::synchronize(s->handle());
}

/// Each event is recorded before a stream is told to wait for it.
void Executor::Device::order() {
  OrderRules rules{p_.skipped, {}, options_.two_lanes_from, false};
  rules.in_turn = options_.transport && options_.transport->one_at_a_time();
  rules.cut = [this](std::size_t i) {
    return p_.chosen[i]->cut ? p_.chosen[i]->cut(p_.calls[i]) : Cut{};
  };
  for (Ordered& at : order_of(p_.plan, p_.queues, rules)) {
    Entry& e = entries_.emplace_back();
    static_cast<Ordered&>(e) = std::move(at);
    if (e.awaited) e.finished.emplace();
    if (e.lane.join) e.join.emplace();
    if (e.lane.fork) e.fork.emplace();
    if (!e.lane.split) continue;
    if (e.awaited) e.half_finished.emplace();
    open_second_lane(e.queue);
    const ops::Implementation& chosen = *p_.chosen[step_of(e)];
    if (chosen.prepare) chosen.prepare(half_of(p_.calls[step_of(e)], e.cut, 1, second_of(e)));
  }
}

void Executor::Device::open_second_lane(std::size_t queue) {
  if (second_[queue]) return;
  std::size_t number = 0;
  for (std::size_t q = 0; q < queue; ++q) number += !p_.queues[q].comm;
  while (options_.second.size() <= number) options_.second.emplace_back();
  second_[queue] = &options_.second[number];
}

void Executor::Device::open_route(Budget& budget) {
  if (!options_.transport) return;
  std::vector<parallel::MessageUnit> units;
  for (Entry& e : entries_) {
    const QueueSteps& q = p_.queues[e.queue];
    if (!q.comm) continue;
    e.transfer = units.size();
    units.push_back({q.queue, messages_of(q, e.unit)});
  }
  route_ = options_.transport->open(std::move(units), budget);
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
  const plan::Step& first = p_.plan.steps[step_of(e)];
  const memory::Mark mark(fmt::format("{} {} {}", first.label, first.index.i, first.index.j));
  const std::size_t q = e.queue;
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
  if (!p_.queues[q].comm) {
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
  run(half_of(p_.calls[i], e.cut, 1, second_of(e)));
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
      out.steps[static_cast<std::size_t>(p_.queues[e.queue].steps[i])] = span;
    (p_.queues[e.queue].comm ? moving : busy).push_back({span.begin_s, span.end_s});
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

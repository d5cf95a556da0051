// SPDX-License-Identifier: Apache-2.0
#include "exec/host.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <thread>

namespace tessera::exec {

namespace {

using Clock = std::chrono::steady_clock;

/// A waiting rank gives its core away: at once, and for longer when nothing comes.
void rest(int turns) {
  if (turns < 4000)
    sched_yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace

/// Makes the run known to operators and watchdog, also when it ends by an exception.
class Executor::Host::Registration {
 public:
  explicit Registration(Host& run) : p_(run.p_) {
    p_.running = &run;
    if (p_.watchdog) p_.watchdog->describe([&run] { return run.waiting_for(); });
  }
  ~Registration() {
    if (p_.watchdog) p_.watchdog->describe({});
    p_.running = nullptr;
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  Prepared& p_;
};

Executor::Host::Host(Prepared& p) : p_(p), done_(p.plan.steps.size()) {
  for (const QueueSteps& q : p.queues)
    if (q.comm) queues_.push_back({&q, 0, false, {}});
  out_.steps.resize(p.plan.steps.size());
}

Measured Executor::Host::execute() {
  const Registration registration(*this);
  start_ = Clock::now();
  out_.start_ns = std::chrono::nanoseconds(start_.time_since_epoch()).count();
  double idle_since = -1;
  int idle_turns = 0;
  while (!finished()) {
    const bool moved = advance();
    if (next_ < p_.compute.size() && ready(p_.compute[next_])) {
      if (idle_since >= 0) out_.exposed_s += now() - idle_since;
      idle_since = -1, idle_turns = 0;
      compute(p_.compute[next_++]);
    } else if (!moved) {
      if (idle_since < 0) idle_since = now();
      rest(++idle_turns);
    }
  }
  if (idle_since >= 0) out_.exposed_s += now() - idle_since;
  out_.seconds = now();
  return std::move(out_);
}

double Executor::Host::now() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

bool Executor::Host::finished() const {
  if (next_ < p_.compute.size()) return false;
  for (const Queue& q : queues_)
    if (!q.finished()) return false;
  return true;
}

bool Executor::Host::ready(std::int32_t step) const {
  for (std::int32_t a : p_.plan.after(p_.step(step)))
    if (!done_[static_cast<std::size_t>(a)]) return false;
  return true;
}

/// Completes and starts transfers; true when anything changed.
bool Executor::Host::advance() {
  bool moved = false;
  for (Queue& q : queues_)
    while (turn(q)) moved = true;
  return moved;
}

void Executor::Host::progress() {
  const double begin = now();
  advance();
  in_progress_ += now() - begin;
}

void Executor::Host::complete(std::int32_t step) {
  done_[static_cast<std::size_t>(step)] = true;
  out_.steps[static_cast<std::size_t>(step)].end_s = now();
  if (p_.watchdog) p_.watchdog->beat();
}

void Executor::Host::compute(std::int32_t step) {
  const auto i = static_cast<std::size_t>(step);
  out_.steps[i].begin_s = now();
  in_progress_ = 0;
  if (!p_.skipped[i]) p_.chosen[i]->run(p_.calls[i]);
  complete(step);
  out_.progress_s += in_progress_;
  out_.compute_s += out_.steps[i].end_s - out_.steps[i].begin_s - in_progress_;
}

/// One move of a queue: its unit in flight completes, or its next unit starts.
bool Executor::Host::turn(Queue& queue) {
  if (queue.finished()) return false;
  const Unit unit = queue.list->units[queue.unit];
  const auto& steps = queue.list->steps;
  if (queue.in_flight) {
    if (!queue.requests.test()) return false;
    for (std::size_t i = unit.begin; i < unit.end; ++i) complete(steps[i]);
    queue.in_flight = false;
    ++queue.unit;
    return true;
  }
  for (std::size_t i = unit.begin; i < unit.end; ++i)
    if (!ready(steps[i])) return false;
  queue.in_flight = true;
  // Receives first: a message that finds its buffer posted is not copied twice.
  for (plan::StepKind kind :
       {plan::StepKind::recv, plan::StepKind::send, plan::StepKind::all_reduce})
    for (std::size_t i = unit.begin; i < unit.end; ++i)
      if (p_.step(steps[i]).kind == kind) post(queue, steps[i]);
  return true;
}

void Executor::Host::post(Queue& queue, std::int32_t step) {
  const auto i = static_cast<std::size_t>(step);
  const plan::Step& s = p_.step(step);
  out_.steps[i].begin_s = now();
  const int tag = static_cast<int>(p_.tag_of(s) % p_.comm.max_tag());
  for (const TensorRef& t : p_.parts[i]) {
    const std::int64_t bytes = t.count() * size_of(t.dtype);
    if (s.kind == plan::StepKind::recv)
      p_.comm.irecv(queue.requests, t.data, bytes, s.comm.peer, tag);
    else if (s.kind == plan::StepKind::send)
      p_.comm.isend(queue.requests, t.data, bytes, s.comm.peer, tag, s.comm.axis);
    else
      reduce(t, s.comm.axis);
  }
}

void Executor::Host::reduce(const TensorRef& t, int axis) {
  const auto n = static_cast<std::size_t>(t.count());
  if (t.dtype == DType::f64)
    p_.comm.all_reduce_sum(std::span<double>(t.as<double>(), n), axis);
  else
    p_.comm.all_reduce_sum(std::span<float>(t.as<float>(), n), axis);
}

/// Read by the watchdog thread while this one waits.
std::string Executor::Host::waiting_for() const {
  std::string text;
  for (const Queue& q : queues_) {
    if (q.finished()) continue;
    const Unit unit = q.list->units[q.unit];
    for (std::size_t i = unit.begin; i < unit.end; ++i) {
      const std::int32_t step = q.list->steps[i];
      const plan::Step& s = p_.step(step);
      if (s.kind == plan::StepKind::all_reduce)
        text += fmt::format("; step {} {}", step, s.label);
      else
        text += fmt::format("; step {} {} {} rank {}", step, s.label,
                            s.kind == plan::StepKind::recv ? "from" : "to", s.comm.peer);
    }
  }
  if (next_ < p_.compute.size()) {
    const std::int32_t step = p_.compute[next_];
    text += fmt::format("; next to compute: step {} {}", step, p_.step(step).label);
  }
  return text.empty() ? "no step" : text.substr(2);
}

}  // namespace tessera::exec

// SPDX-License-Identifier: Apache-2.0
#include "exec/executor.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace tessera::exec {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Steps [begin, end) of a queue's list that start and complete together.
struct Unit {
  std::size_t begin, end;
};

}  // namespace

/// Everything about a plan that stays the same from run to run.
struct Executor::Prepared {
  const plan::Plan& plan;
  parallel::Communicator& comm;
  parallel::Watchdog* watchdog;
  std::vector<Buffer> scratch;
  std::vector<TensorRef> tensors;                  // by buffer
  std::vector<ops::Call> calls;                    // by step; empty name for transfers
  std::vector<const ops::Implementation*> chosen;  // by step
  std::vector<std::vector<TensorRef>> parts;       // by step: what a transfer carries
  std::vector<std::int32_t> compute;               // steps of compute queues, in order
  std::vector<std::vector<std::int32_t>> queues;   // steps of each comm queue
  std::vector<std::vector<Unit>> units;            // of each comm queue
  Run* running = nullptr;

  Prepared(const plan::Plan& p, const Binding& binding, const ops::Registry& registry,
           parallel::Communicator& c, Budget& budget, parallel::Watchdog* w)
      : plan(p),
        comm(c),
        watchdog(w),
        calls(p.steps.size()),
        chosen(p.steps.size()),
        parts(p.steps.size()) {
    bind_buffers(binding, budget);
    sort_steps();
    for (std::size_t i = 0; i < p.steps.size(); ++i) prepare_step(i, binding, registry);
  }

  void bind_buffers(const Binding& binding, Budget& budget) {
    for (const plan::Buffer& b : plan.buffers) {
      if (b.role == plan::Role::scratch) {
        scratch.emplace_back(budget, b.bytes(), b.name);
        tensors.push_back(dense(scratch.back().data(), b.dtype, b.shape));
        continue;
      }
      tensors.push_back(binding.external(b));
      const TensorRef& t = tensors.back();
      if (t.dtype != b.dtype || t.shape != b.shape)
        throw std::logic_error(
            fmt::format("buffer {}: bound tensor has another shape or dtype", b.name));
    }
  }

  void sort_steps() {
    std::vector<int> comm_queue(plan.queues.size(), -1);
    for (std::size_t q = 0; q < plan.queues.size(); ++q)
      if (plan.queues[q].kind == plan::QueueKind::comm) {
        comm_queue[q] = static_cast<int>(queues.size());
        queues.emplace_back();
        units.emplace_back();
      }
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      const plan::Step& s = plan.steps[i];
      const int q = comm_queue[static_cast<std::size_t>(s.queue)];
      if (q < 0) {
        compute.push_back(static_cast<std::int32_t>(i));
        continue;
      }
      auto& list = queues[static_cast<std::size_t>(q)];
      auto& blocks = units[static_cast<std::size_t>(q)];
      const bool joins = s.group >= 0 && !list.empty() &&
                         plan.steps[static_cast<std::size_t>(list.back())].group == s.group;
      list.push_back(static_cast<std::int32_t>(i));
      if (joins)
        blocks.back().end = list.size();
      else
        blocks.push_back({list.size() - 1, list.size()});
    }
  }

  TensorRef tensor(const plan::Use& use) const {
    return tensors[static_cast<std::size_t>(use.buffer)].slice(use.d0, use.d1);
  }

  void prepare_step(std::size_t i, const Binding& binding, const ops::Registry& registry);
};

/// One walk through the plan.
class Executor::Run {
 public:
  explicit Run(Prepared& p) : p_(p), done_(p.plan.steps.size()), queues_(p.queues.size()) {
    out_.steps.resize(p.plan.steps.size());
  }

  Measured execute() {
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

  /// Completes and starts transfers; true when anything changed.
  bool advance() {
    bool moved = false;
    for (std::size_t q = 0; q < queues_.size(); ++q)
      while (turn(q)) moved = true;
    return moved;
  }

  void progress() {
    const double begin = now();
    advance();
    in_progress_ += now() - begin;
  }

 private:
  struct Queue {
    std::size_t unit = 0;
    bool in_flight = false;
    parallel::RequestSet requests;
  };

  /// Makes the run known to operators and watchdog, also when it ends by an exception.
  struct Registration {
    explicit Registration(Run& run) : p(run.p_) {
      p.running = &run;
      if (p.watchdog) p.watchdog->describe([&run] { return run.waiting_for(); });
    }
    ~Registration() {
      if (p.watchdog) p.watchdog->describe({});
      p.running = nullptr;
    }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;
    Prepared& p;
  };

  double now() const { return seconds_since(start_); }

  bool finished() const {
    if (next_ < p_.compute.size()) return false;
    for (std::size_t q = 0; q < queues_.size(); ++q)
      if (queues_[q].unit < p_.units[q].size()) return false;
    return true;
  }

  bool ready(std::int32_t step) const {
    for (std::int32_t a : p_.plan.after(p_.plan.steps[static_cast<std::size_t>(step)]))
      if (!done_[static_cast<std::size_t>(a)]) return false;
    return true;
  }

  void complete(std::int32_t step) {
    done_[static_cast<std::size_t>(step)] = true;
    out_.steps[static_cast<std::size_t>(step)].end_s = now();
    if (p_.watchdog) p_.watchdog->beat();
  }

  void compute(std::int32_t step) {
    const auto i = static_cast<std::size_t>(step);
    out_.steps[i].begin_s = now();
    in_progress_ = 0;
    p_.chosen[i]->run(p_.calls[i]);
    complete(step);
    out_.progress_s += in_progress_;
    out_.compute_s += out_.steps[i].end_s - out_.steps[i].begin_s - in_progress_;
  }

  /// One move of a queue: its unit in flight completes, or its next unit starts.
  bool turn(std::size_t q) {
    Queue& queue = queues_[q];
    if (queue.unit >= p_.units[q].size()) return false;
    const Unit unit = p_.units[q][queue.unit];
    const auto& list = p_.queues[q];
    if (queue.in_flight) {
      if (!queue.requests.test()) return false;
      for (std::size_t i = unit.begin; i < unit.end; ++i) complete(list[i]);
      queue.in_flight = false;
      ++queue.unit;
      return true;
    }
    for (std::size_t i = unit.begin; i < unit.end; ++i)
      if (!ready(list[i])) return false;
    queue.in_flight = true;
    // Receives first: a message that finds its buffer posted is not copied twice.
    for (plan::StepKind kind :
         {plan::StepKind::recv, plan::StepKind::send, plan::StepKind::all_reduce})
      for (std::size_t i = unit.begin; i < unit.end; ++i)
        if (p_.plan.steps[static_cast<std::size_t>(list[i])].kind == kind) post(queue, list[i]);
    return true;
  }

  void post(Queue& queue, std::int32_t step) {
    const auto i = static_cast<std::size_t>(step);
    const plan::Step& s = p_.plan.steps[i];
    out_.steps[i].begin_s = now();
    const int tag =
        static_cast<int>((std::int64_t{s.comm.key} * 16 + s.comm.axis) % p_.comm.max_tag());
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

  void reduce(const TensorRef& t, int axis) {
    const auto n = static_cast<std::size_t>(t.count());
    if (t.dtype == DType::f64)
      p_.comm.all_reduce_sum(std::span<double>(t.as<double>(), n), axis);
    else
      p_.comm.all_reduce_sum(std::span<float>(t.as<float>(), n), axis);
  }

  /// A waiting rank gives its core away: at once, and for longer when nothing comes.
  static void rest(int turns) {
    if (turns < 4000)
      sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  /// Read by the watchdog thread while this one waits.
  std::string waiting_for() const {
    std::string text;
    for (std::size_t q = 0; q < queues_.size(); ++q) {
      if (queues_[q].unit >= p_.units[q].size()) continue;
      const Unit unit = p_.units[q][queues_[q].unit];
      for (std::size_t i = unit.begin; i < unit.end; ++i) {
        const std::int32_t step = p_.queues[q][i];
        const plan::Step& s = p_.plan.steps[static_cast<std::size_t>(step)];
        if (s.kind == plan::StepKind::all_reduce)
          text += fmt::format("; step {} {}", step, s.label);
        else
          text += fmt::format("; step {} {} {} rank {}", step, s.label,
                              s.kind == plan::StepKind::recv ? "from" : "to", s.comm.peer);
      }
    }
    if (next_ < p_.compute.size()) {
      const std::int32_t step = p_.compute[next_];
      text += fmt::format("; next to compute: step {} {}", step,
                          p_.plan.steps[static_cast<std::size_t>(step)].label);
    }
    return text.empty() ? "no step" : text.substr(2);
  }

  Prepared& p_;
  std::vector<char> done_;
  std::vector<Queue> queues_;
  std::size_t next_ = 0;
  double in_progress_ = 0;
  Clock::time_point start_;
  Measured out_;
};

void Executor::Prepared::prepare_step(std::size_t i, const Binding& binding,
                                      const ops::Registry& registry) {
  const plan::Step& s = plan.steps[i];
  if (s.kind != plan::StepKind::compute && s.kind != plan::StepKind::copy) {
    for (const plan::Use& use : plan.uses(s)) {
      parts[i].push_back(tensor(use));
      if (!parts[i].back().contiguous())
        throw std::logic_error(fmt::format("step {} {}: a message part with gaps", i, s.label));
    }
    return;
  }
  ops::Call& call = calls[i];
  call.name = s.work.op;
  for (const plan::Use& use : plan.uses(s)) call.args.push_back(tensor(use));
  if (binding.attributes) call.attributes = binding.attributes(s);
  if (!queues.empty())
    call.progress = [this] {
      if (running) running->progress();
    };
  chosen[i] = &registry.choose(call);
}

Executor::Executor(const plan::Plan& plan, const Binding& binding, const ops::Registry& registry,
                   parallel::Communicator& comm, Budget& budget, parallel::Watchdog* watchdog)
    : prepared_(std::make_unique<Prepared>(plan, binding, registry, comm, budget, watchdog)) {}

Executor::~Executor() = default;

Measured Executor::run() { return Run(*prepared_).execute(); }

}  // namespace tessera::exec

// SPDX-License-Identifier: Apache-2.0
// The event loop: a heap of step ends; every end lets units start, every start may begin transfers.
#include "plan/simulate.hpp"

#include <algorithm>
#include <queue>

#include <fmt/format.h>

#include "base/error.hpp"
#include "plan/check_rules.hpp"
#include "plan/cost.hpp"
#include "plan/graph.hpp"

namespace tessera::plan {

namespace {

struct Ending {
  double time;
  std::int64_t order;  // ties end in the order in which they were scheduled
  std::int32_t step;
  bool operator>(const Ending& o) const { return time != o.time ? time > o.time : order > o.order; }
};

/// Adds up how one rank spends its time, event by event.
class Account {
 public:
  void post(double now) { advance(now), ++posted_; }
  void move(double now) { advance(now), ++moving_; }
  void end_comm(double now) { advance(now), --posted_, --moving_; }
  void begin_compute(double now) {
    advance(now);
    ++running_;
    exposed_s_ += idle_s_;  // more compute follows the wait: it was not the tail
    idle_s_ = 0;
  }
  void end_compute(double now, double seconds) {
    advance(now);
    --running_;
    compute_s_ += seconds;
  }
  void read(RankTime& rank) const {
    rank.compute_s = compute_s_;
    rank.comm_s = comm_s_;
    rank.exposed_s = exposed_s_;
  }

 private:
  void advance(double now) {
    if (moving_ > 0) comm_s_ += now - last_;
    if (posted_ > 0 && running_ == 0) idle_s_ += now - last_;
    last_ = now;
  }
  int posted_ = 0, moving_ = 0, running_ = 0;
  double last_ = 0, compute_s_ = 0, comm_s_ = 0, exposed_s_ = 0, idle_s_ = 0;
};

class Simulation {
 public:
  Simulation(const Program& program, const Machine& machine, const SimulateOptions& options)
      : graph_(make_graph(program)),
        progress_(graph_),
        cost_(graph_, machine),
        options_(options),
        overlap_(machine.overlap),
        times_(graph_.unit_of.size()),
        started_(graph_.units.size()),
        way_out_(graph_.units.size()),
        way_in_(graph_.units.size()),
        arrived_(graph_.meetings.size()),
        moving_(program.plans.size()),
        running_(program.plans.size()),
        accounts_(program.plans.size()) {}

  SimulateResult run() {
    start_units();
    while (!heap_.empty()) {
      const Ending top = heap_.top();
      heap_.pop();
      if (top.time < times_[top.step].end_s) {  // postponed meanwhile
        schedule(top.step);
        continue;
      }
      now_ = top.time;
      end(top.step);
      start_units();
    }
    require_done();
    return result();
  }

 private:
  double override_of(std::int32_t step) const {
    return options_.duration ? options_.duration(graph_.rank_of(step), graph_.step(step)) : -1;
  }

  void schedule(std::int32_t step) { heap_.push({times_[step].end_s, order_++, step}); }

  void end(std::int32_t step) {
    const int rank = graph_.rank_of(step);
    if (is_comm(graph_.step(step).kind)) {
      accounts_[rank].end_comm(now_);
    } else {
      accounts_[rank].end_compute(now_, now_ - times_[step].begin_s);
      std::erase(running_[rank], step);
    }
    progress_.complete(step);
  }

  void start_units() {
    while (!progress_.startable.empty()) {
      ready_.swap(progress_.startable);
      for (const std::int32_t unit : ready_) start(unit);
      ready_.clear();
    }
  }

  void start(std::int32_t unit) {
    started_[unit] = true;
    way_out_[unit] = way_in_[unit] = now_;
    for (const std::int32_t step : graph_.members_of(graph_.units[unit])) {
      times_[step].posted_s = now_;
      const StepKind kind = graph_.step(step).kind;
      if (is_comm(kind)) accounts_[graph_.rank_of(step)].post(now_);
      if (kind == StepKind::all_reduce) {
        join_meeting(step);
      } else if (is_comm(kind)) {
        const std::int32_t other = graph_.partner[step];
        if (other < 0 || !started_[graph_.unit_of[other]]) continue;
        const bool sends = kind == StepKind::send;
        move(sends ? step : other, sends ? other : step);
      } else {
        compute(step);
      }
    }
  }

  void compute(std::int32_t step) {
    const int rank = graph_.rank_of(step);
    double seconds = override_of(step);
    if (seconds < 0) seconds = cost_.compute(rank, graph_.step(step));
    accounts_[rank].begin_compute(now_);
    times_[step].begin_s = now_;
    times_[step].end_s = now_ + seconds;
    if (overlap_ < 1) {
      std::erase_if(moving_[rank], [&](double end) { return end <= now_; });
      for (const double end : moving_[rank]) times_[step].end_s += stolen(end - now_, seconds);
      running_[rank].push_back(step);
    }
    schedule(step);
  }

  /// Both units have started. The sends of a unit queue up on its way out, receives on its way in.
  void move(std::int32_t send, std::int32_t recv) {
    double seconds = override_of(send);
    if (seconds < 0) seconds = cost_.message(graph_.rank_of(send), graph_.step(send));
    double& out = way_out_[graph_.unit_of[send]];
    double& in = way_in_[graph_.unit_of[recv]];
    out = std::max(out, now_) + seconds;
    in = std::max(in, now_) + seconds;
    const double end = std::max(out, in);
    for (const std::int32_t step : {send, recv}) transfer(step, std::max(now_, end - seconds), end);
  }

  void join_meeting(std::int32_t step) {
    const std::int32_t m = graph_.meeting_of[step];
    const Meeting& meeting = graph_.meetings[m];
    if (++arrived_[m] < meeting.expected) return;
    double seconds = -1;
    for (const std::int32_t member : meeting.members) {
      seconds = std::max(seconds, override_of(member));
    }
    if (seconds < 0) seconds = cost_.all_reduce(meeting);
    for (const std::int32_t member : meeting.members) transfer(member, now_, now_ + seconds);
  }

  void transfer(std::int32_t step, double begin, double end) {
    times_[step].begin_s = begin;
    times_[step].end_s = end;
    schedule(step);
    const int rank = graph_.rank_of(step);
    accounts_[rank].move(now_);
    if (overlap_ >= 1) return;
    moving_[rank].push_back(end);
    for (const std::int32_t busy : running_[rank]) {
      times_[busy].end_s += stolen(end - begin, times_[busy].end_s - begin);
    }
  }

  /// What a transfer that still moves for `moving` seconds takes from `work` seconds of compute,
  /// which runs at the speed overlap_ meanwhile.
  double stolen(double moving, double work) const {
    if (work <= 0) return 0;
    const double together = work < moving * overlap_ ? work / overlap_ : moving;
    return (1 - overlap_) * together;
  }

  void require_done() const {
    if (progress_.num_complete() == static_cast<std::int64_t>(times_.size())) return;
    for (std::size_t s = 0; s < times_.size(); ++s) {
      const auto step = static_cast<std::int32_t>(s);
      if (progress_.is_complete(step)) continue;
      throw Error(Exit::invalid,
                  fmt::format("simulation stands still; {} never ends", describe(graph_, step)),
                  "check the plan: the checker names the cycle");
    }
  }

  SimulateResult result() const {
    SimulateResult all;
    for (std::size_t r = 0; r < graph_.program->plans.size(); ++r) {
      RankTime rank;
      rank.steps.assign(times_.begin() + graph_.step_base[r],
                        times_.begin() + graph_.step_base[r + 1]);
      for (const StepTime& t : rank.steps) rank.end_s = std::max(rank.end_s, t.end_s);
      accounts_[r].read(rank);
      all.makespan_s = std::max(all.makespan_s, rank.end_s);
      all.ranks.push_back(std::move(rank));
    }
    return all;
  }

  Graph graph_;
  Progress progress_;
  Cost cost_;
  const SimulateOptions& options_;
  double overlap_;
  std::vector<StepTime> times_;                     // per step
  std::vector<bool> started_;                       // per unit
  std::vector<double> way_out_, way_in_;            // per unit: busy until
  std::vector<std::int32_t> arrived_;               // per meeting
  std::vector<std::vector<double>> moving_;         // per rank: ends of transfers, for overlap < 1
  std::vector<std::vector<std::int32_t>> running_;  // per rank: compute steps, for overlap < 1
  std::vector<Account> accounts_;                   // per rank
  std::vector<std::int32_t> ready_;
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> heap_;
  std::int64_t order_ = 0;
  double now_ = 0;
};

}  // namespace

SimulateResult simulate(const Program& program, const Machine& machine,
                        const SimulateOptions& options) {
  return Simulation(program, machine, options).run();
}

}  // namespace tessera::plan

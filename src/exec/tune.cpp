// SPDX-License-Identifier: Apache-2.0
// Choice of backends by measurement: each kind of compute call of a plan is run by every backend
// that can run all calls of its operator on all ranks, and the least time, summed over the ranks,
// wins. Every rank decides by the same sums, so all choose alike.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "base/log.hpp"
#include "base/units.hpp"
#include "exec/prepared.hpp"
#include "memory/cuda.hpp"
#include "plan/region.hpp"

namespace tessera::exec {

namespace {

/// Backends of a lower priority are there for completeness (loops, fallbacks of a device) and
/// compete only where no other can run an operator.
constexpr int least_priority = 10;
constexpr int timed_runs = 3;
constexpr double never = std::numeric_limits<double>::infinity();

/// All that the time of a call of one operator depends on.
std::vector<std::int64_t> signature_of(const ops::Call& call) {
  std::vector<std::int64_t> out;
  for (const TensorRef& t : call.args) {
    out.push_back(static_cast<std::int64_t>(t.dtype));
    out.insert(out.end(), t.shape.begin(), t.shape.end());
    out.insert(out.end(), t.stride.begin(), t.stride.end());
  }
  for (const ops::Band& b : call.attributes.mask)
    out.insert(out.end(), {b.q0, b.q1, b.k0, b.k1, b.lo, b.hi});
  out.push_back(std::bit_cast<std::int64_t>(call.attributes.softcap));
  return out;
}

/// By buffer: the plan writes all of it that it reads before it does so, hence what is in it before
/// the plan runs does not matter. Of scratch the checker has proved it.
std::vector<char> overwritable(const plan::Plan& plan) {
  std::vector<char> out(plan.buffers.size(), 1);
  std::vector<plan::Region> written(plan.buffers.size());
  plan::Rect hole;
  for (const plan::Step& s : plan.steps) {
    for (const plan::Use& u : plan.uses(s)) {
      const auto b = static_cast<std::size_t>(u.buffer);
      if (u.access != plan::Access::write && plan.buffers[b].role != plan::Role::scratch &&
          !written[b].contains({u.d0, u.d1}, hole))
        out[b] = 0;
    }
    for (const plan::Use& u : plan.uses(s))
      if (u.access == plan::Access::write)
        written[static_cast<std::size_t>(u.buffer)].add({u.d0, u.d1});
  }
  return out;
}

/// Calls that look alike to every backend.
struct Kind {
  std::vector<const ops::Implementation*> candidates;  ///< highest priority first
  const ops::Call* sample = nullptr;  ///< may be run outside the plan; null: none of them may
  int count = 0;
};

struct Score {
  double refused = 0;   ///< kinds that it cannot run, of all ranks
  double fallback = 0;  ///< kinds that it runs as a fallback, of all ranks
  double seconds = 0;   ///< of all calls of all ranks
  bool competes = false;
};

class Tuner {
 public:
  Tuner(const plan::Plan& plan, const std::vector<ops::Call>& calls, const ops::Registry& registry,
        parallel::Communicator& comm, parallel::Watchdog* watchdog)
      : comm_(comm), watchdog_(watchdog), kind_of_(calls.size()) {
    sort_calls(plan, calls, registry);
    agree_on_names();
    admit();
    for (auto& [name, score] : scores_)
      if (competitors(name.first) > 1) measure(name, score);
    sum(&Score::seconds);
    if (comm.rank() == 0) report();
  }

  /// Who is to run a step; null for transfers.
  const ops::Implementation* best(std::size_t step) const {
    const Kind* kind = kind_of_[step];
    if (!kind) return nullptr;
    const ops::Implementation* best = kind->candidates.front();
    double least = never;
    for (const ops::Implementation* c : kind->candidates) {
      const Score& score = scores_.at({c->op, c->backend});
      if (score.competes && score.seconds < least) best = c, least = score.seconds;
    }
    return best;
  }

 private:
  using Name = std::pair<std::string, std::string>;  // operator, backend

  void sort_calls(const plan::Plan& plan, const std::vector<ops::Call>& calls,
                  const ops::Registry& registry) {
    const std::vector<char> free = overwritable(plan);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].name.empty()) continue;
      Kind& kind = kinds_[calls[i].name][signature_of(calls[i])];
      if (kind.count++ == 0) kind.candidates = registry.candidates(calls[i]);
      const auto uses = plan.uses(plan.steps[i]);
      const bool harmless = std::all_of(uses.begin(), uses.end(), [&](const plan::Use& u) {
        return u.access == plan::Access::read || free[static_cast<std::size_t>(u.buffer)];
      });
      if (harmless && !kind.sample) kind.sample = &calls[i];
      kind_of_[i] = &kind;
    }
  }

  /// The same list on all ranks, whatever backends each of them has and calls it makes.
  void agree_on_names() {
    std::set<Name> names;
    for (const auto& [op, kinds] : kinds_)
      for (const auto& [signature, kind] : kinds)
        for (const ops::Implementation* c : kind.candidates) names.insert({c->op, c->backend});
    std::string text;
    for (const auto& [op, backend] : names) text += op + ' ' + backend + '\n';
    std::string all;
    for (const std::string& theirs : comm_.gather(text, 0)) all += theirs;
    comm_.broadcast(all, 0);
    std::istringstream in(all);
    for (Name name; in >> name.first >> name.second;) scores_[name];
  }

  static const ops::Implementation* find(const Kind& kind, const std::string& backend) {
    for (const ops::Implementation* c : kind.candidates)
      if (c->backend == backend) return c;
    return nullptr;
  }

  /// Lets those compete that every rank can use for all its calls.
  void admit() {
    for (auto& [name, score] : scores_)
      for (const auto& [signature, kind] : kinds_[name.first]) {
        const ops::Implementation* c = find(kind, name.second);
        score.refused += !c;
        score.fallback += c && c->priority < least_priority;
      }
    sum(&Score::refused);
    sum(&Score::fallback);
    std::set<std::string> served;  // operators that need no fallback
    for (const auto& [name, score] : scores_)
      if (score.refused == 0 && score.fallback == 0) served.insert(name.first);
    for (auto& [name, score] : scores_)
      score.competes = score.refused == 0 && (score.fallback == 0 || !served.contains(name.first));
  }

  std::ptrdiff_t competitors(const std::string& op) const {
    return std::count_if(scores_.begin(), scores_.end(),
                         [&](const auto& s) { return s.first.first == op && s.second.competes; });
  }

  void measure(const Name& name, Score& score) {
    if (!score.competes) return;
    for (const auto& [signature, kind] : kinds_[name.first])
      if (kind.sample)
        score.seconds += kind.count * time_of(*find(kind, name.second), *kind.sample);
  }

  /// Best of the timed runs. A backend that nobody asked for must not end the job by failing.
  double time_of(const ops::Implementation& i, const ops::Call& call) const {
    double best = never;
    try {
      if (i.prepare) i.prepare(call);
      run(i, call);
      for (int n = 0; n < timed_runs; ++n) best = std::min(best, run(i, call));
    } catch (const Error& e) {
      log::warn("autotune: backend {} of {} fails: {}", i.backend, i.op, e.message());
      return never;
    }
    return best;
  }

  double run(const ops::Implementation& i, const ops::Call& call) const {
    using Clock = std::chrono::steady_clock;
    const bool device = !call.args.empty() && call.args.front().space == Space::cuda;
    if (device) memory::synchronize(call.stream);
    const Clock::time_point start = Clock::now();
    i.run(call);
    if (device) memory::synchronize(call.stream);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (watchdog_) watchdog_->beat();
    return seconds;
  }

  void sum(double Score::*member) {
    std::vector<double> values;
    for (const auto& [name, score] : scores_) values.push_back(score.*member);
    comm_.all_reduce_sum(values);
    std::size_t i = 0;
    for (auto& [name, score] : scores_) score.*member = values[i++];
  }

  void report() const {
    std::map<std::string, std::multimap<double, std::string>> times;
    for (const auto& [name, score] : scores_)
      if (score.competes) times[name.first].emplace(score.seconds, name.second);
    for (const auto& [op, list] : times) {
      if (list.size() < 2 || list.rbegin()->first == 0) continue;
      std::string text;
      for (const auto& [seconds, backend] : list)
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", backend,
                            seconds < never ? units::format_seconds(seconds) : "failed");
      log::info("autotune of {}, summed over ranks: {}", op, text);
    }
  }

  parallel::Communicator& comm_;
  parallel::Watchdog* watchdog_;
  std::map<std::string_view, std::map<std::vector<std::int64_t>, Kind>> kinds_;
  std::vector<const Kind*> kind_of_;  // by step
  std::map<Name, Score> scores_;      // the same names on all ranks
};

}  // namespace

void Executor::Prepared::tune() {
  if (!registry.autotune()) return;
  const Tuner tuner(plan, calls, registry, comm, watchdog);
  for (std::size_t i = 0; i < chosen.size(); ++i) chosen[i] = tuner.best(i);
}

}  // namespace tessera::exec

// SPDX-License-Identifier: Apache-2.0
#include "drivers/attention/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "drivers/attention/timeline.hpp"
#include "exec/clock.hpp"

namespace tessera::drivers {

using attention::Pass;

namespace {

/// What all ranks took in one repeat.
struct Repeat {
  double seconds, exposed, progress;
};

std::vector<Repeat> time_pass(attention::Session& session, attention::PreparedPass& pass,
                              parallel::Communicator& comm, const BenchOptions& options,
                              exec::Measured& last) {
  for (int i = 0; i < options.warmup; ++i) {
    comm.barrier();
    session.run(pass);
  }
  std::vector<Repeat> out;
  for (int i = 0; i < options.repeats; ++i) {
    comm.barrier();
    comm.reset_counters();
    last = session.run(pass);
    out.push_back({comm.all_reduce_max(last.seconds), comm.all_reduce_max(last.exposed_s),
                   comm.all_reduce_max(last.progress_s)});
  }
  return out;
}

MeasuredPart summarise(const std::vector<Repeat>& repeats, const Record& r,
                       const attention::Surroundings& around) {
  MeasuredPart m;
  std::vector<double> seconds;
  for (const Repeat& x : repeats) seconds.push_back(x.seconds);
  m.seconds = spread_of(seconds);
  m.all_seconds = seconds;
  std::vector<Repeat> sorted = repeats;
  std::sort(sorted.begin(), sorted.end(),
            [](const Repeat& a, const Repeat& b) { return a.seconds < b.seconds; });
  m.exposed_s = sorted[sorted.size() / 2].exposed;
  m.progress_s = sorted[sorted.size() / 2].progress;
  m.gflops_per_rank = r.flops / around.comm.size() / m.seconds.median * 1e-9;
  std::int64_t sent = 0;
  for (std::int64_t b : around.comm.bytes_sent()) sent += b;
  m.bytes_sent = around.comm.all_gather(sent);
  m.peak_bytes = around.comm.all_reduce_max(around.budget.peak());
  return m;
}

/// The last repeat of all ranks as rows (rank, step, begin, end); values on rank 0, zeros
/// elsewhere.
std::vector<double> gather_steps(const exec::Measured& run, std::size_t num_steps,
                                 const parallel::Communicator& comm) {
  const std::string mine(reinterpret_cast<const char*>(run.steps.data()),
                         run.steps.size() * sizeof(exec::Span));
  const std::vector<std::string> all = comm.gather(mine, 0);
  std::vector<double> rows;
  for (std::size_t r = 0; r < all.size(); ++r)
    for (std::size_t i = 0; i < all[r].size() / sizeof(exec::Span); ++i) {
      exec::Span s;
      std::memcpy(&s, all[r].data() + i * sizeof s, sizeof s);
      rows.insert(rows.end(), {static_cast<double>(r), static_cast<double>(i), s.begin_s, s.end_s});
    }
  rows.resize(4 * num_steps);
  return rows;
}

Record* record_of(const std::vector<Record*>& records, Pass pass) {
  for (Record* r : records)
    if (r->pass == pass) return r;
  return nullptr;
}

}  // namespace

void bench_scheme(const attention::Problem& p, const attention::Scheme& scheme,
                  const plan::Machine& machine, const attention::Fill& fill,
                  attention::Surroundings around, const attention::Reference* reference,
                  const BenchOptions& options, const std::vector<Record*>& records) {
  attention::Session session(p, around);
  const bool backward = record_of(records, Pass::backward) != nullptr;
  for (Pass pass : {Pass::forward, Pass::backward}) {
    if (pass == Pass::backward && !backward) continue;
    Record* record = record_of(records, pass);
    attention::PreparedPass& prepared = session.prepare(
        attention::choose(p, scheme, around.comm.size(), pass, machine), pass, machine);
    around.budget.reset_peak();
    session.bind(prepared);
    session.fill(fill);
    if (!record) {  // forward is run for what backward needs of it
      around.comm.barrier();
      session.run(prepared);
      continue;
    }
    exec::Measured last;
    const std::vector<Repeat> repeats = time_pass(session, prepared, around.comm, options, last);
    record->measured = summarise(repeats, *record, around);
    record->measured->steps = gather_steps(last, record->num_steps, around.comm);
    if (reference) {
      const attention::Errors e =
          attention::compare(session, prepared, pass, *reference, around.comm);
      record->measured->error_ratio = e.ratio;
      record->measured->error_max_abs = e.max_abs;
      record->measured->error_worst = e.worst;
    }
    if (options.timeline)
      append_measured(*options.timeline, prepared.program(), last, exec::align_clocks(around.comm),
                      around.comm);
    if (options.keep) options.keep(session, prepared, *record);
  }
}

}  // namespace tessera::drivers

// SPDX-License-Identifier: Apache-2.0
#include "drivers/attention/bench.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "drivers/attention/timeline.hpp"
#include "exec/clock.hpp"
#include "trace/overlap.hpp"
#include "trace/straggler.hpp"

namespace tessera::drivers {

using attention::Pass;

namespace {

/// What all ranks took in one repeat.
struct Repeat {
  double seconds, exposed, progress, launch;
  std::vector<double> compute;  // per rank
};

struct TimeOptions {
  int warmup, repeats;
  bool device;
};

std::vector<Repeat> time_pass(attention::Session& session, attention::PreparedPass& pass,
                              parallel::Communicator& comm, const TimeOptions& options,
                              exec::Measured& last) {
  for (int i = 0; i < options.warmup; ++i) {
    comm.barrier();
    session.run(pass);
  }
  // On a device the repeats are not looked into; what their steps take is seen beforehand.
  comm.barrier();
  if (options.device) last = session.profile(pass);
  std::vector<Repeat> out;
  for (int i = 0; i < options.repeats; ++i) {
    comm.barrier();
    comm.reset_counters();
    exec::Measured run = session.run(pass);
    if (options.device)
      run.exposed_s = last.exposed_s, run.compute_s = last.compute_s;
    else
      last = run;
    out.push_back({comm.all_reduce_max(run.seconds), comm.all_reduce_max(run.exposed_s),
                   comm.all_reduce_max(run.progress_s), comm.all_reduce_max(run.launch_s),
                   comm.all_gather(run.compute_s)});
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
  m.launch_s = sorted[sorted.size() / 2].launch;
  m.gflops_per_rank = r.flops / around.comm.size() / m.seconds.median * 1e-9;
  std::int64_t sent = 0;
  for (std::int64_t b : around.comm.bytes_sent()) sent += b;
  m.bytes_sent = around.comm.all_gather(sent);
  m.peak_bytes = around.comm.all_reduce_max(around.budget.peak());
  return m;
}

/// The events of a run as rows (rank, step, begin, end); values on rank 0, zeros elsewhere.
std::vector<double> step_rows(const trace::Timeline& run, std::size_t num_steps) {
  std::vector<double> rows;
  for (const trace::Event& e : run.events)
    rows.insert(rows.end(),
                {static_cast<double>(e.rank), static_cast<double>(e.step), e.begin_s, e.end_s});
  rows.resize(4 * num_steps);
  return rows;
}

/// How much of the communication was hidden, and who was waited for; on rank 0.
void explain(MeasuredPart& m, const trace::Timeline& run, const std::vector<Repeat>& repeats) {
  m.overlap_share = 1;
  for (const trace::Overlap& o : trace::overlap_of(run))
    if (o.comm_s > 0) m.overlap_share = std::min(m.overlap_share, o.share);
  std::vector<std::vector<double>> compute;
  for (const Repeat& r : repeats) compute.push_back(r.compute);
  const trace::StragglerReport s = trace::find_straggler(compute);
  m.straggler = s.rank;
  m.straggler_ratio = s.ratio;
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
      session.release(prepared);
      continue;
    }
    exec::Measured last;
    const std::vector<Repeat> repeats =
        time_pass(session, prepared, around.comm,
                  {options.warmup, options.repeats, around.device != nullptr}, last);
    record->measured = summarise(repeats, *record, around);
    record->measured->backends = *last.backends;
    const trace::Timeline run =
        measured_timeline(prepared.program(), last, exec::align_clocks(around.comm), around.comm);
    record->measured->steps = step_rows(run, record->num_steps);
    explain(*record->measured, run, repeats);
    if (options.timeline) append(*options.timeline, run);
    if (reference) {
      const attention::Errors e =
          attention::compare(session, prepared, pass, *reference, around.comm);
      record->measured->error_ratio = e.ratio;
      record->measured->error_max_abs = e.max_abs;
      record->measured->error_worst = e.worst;
    }
    if (options.keep) options.keep(session, prepared, *record);
    session.release(prepared);
  }
}

}  // namespace tessera::drivers

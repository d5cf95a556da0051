// SPDX-License-Identifier: Apache-2.0
#include "drivers/attention/record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attention/context.hpp"
#include "attention/volume.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "plan/check.hpp"
#include "plan/count.hpp"

namespace tessera::drivers {

Spread spread_of(std::vector<double> v) {
  if (v.empty()) return {};
  std::sort(v.begin(), v.end());
  const std::size_t h = v.size() / 2;
  return {v.size() % 2 ? v[h] : 0.5 * (v[h - 1] + v[h]), v.front(), v.back()};
}

std::int64_t Record::bytes_max() const {
  return bytes_plan.empty() ? 0 : *std::max_element(bytes_plan.begin(), bytes_plan.end());
}

bool Record::bytes_agree() const {
  return bytes_plan == bytes_formula && (!measured || measured->bytes_sent == bytes_formula);
}

namespace {

void refuse_faults(const plan::Program& program) {
  const std::vector<plan::Fault> faults = plan::check(program);
  if (faults.empty()) return;
  std::string text = fmt::format("plan '{}' has {} faults", program.name, faults.size());
  for (std::size_t i = 0; i < std::min<std::size_t>(3, faults.size()); ++i)
    text += fmt::format("\n  {}: {}", faults[i].name, faults[i].message);
  throw Error(Exit::invalid, text, "this is a bug in the scheme; please report the deck");
}

void take_counts(Record& r, const plan::Program& program, const plan::Machine& machine,
                 double unit) {
  std::vector<double> axes(program.axes.size());
  double most_flops = 0;
  for (const plan::RankCount& c : plan::count(program, std::max(1, machine.ranks_per_node))) {
    r.bytes_plan.push_back(c.bytes_sent);
    r.volume_u = std::max(r.volume_u, static_cast<double>(c.elements_sent) / unit);
    for (std::size_t a = 0; a < axes.size(); ++a)
      axes[a] = std::max(axes[a], static_cast<double>(c.by_axis[a].elements) / unit);
    r.inter_bytes = std::max(r.inter_bytes, c.inter_bytes);
    r.flops += c.flops;
    most_flops = std::max(most_flops, c.flops);
    r.peak_plan = std::max(r.peak_plan, c.peak_bytes);
  }
  for (std::size_t a = 0; a < axes.size(); ++a)
    if (axes[a] > 0) r.volume_axes.emplace_back(program.axes[a].name, axes[a]);
  if (r.flops > 0) r.imbalance = most_flops / (r.flops / static_cast<double>(program.plans.size()));
  for (const plan::Plan& p : program.plans) r.num_steps += p.steps.size();
}

}  // namespace

Record plan_record(const attention::Problem& p, const attention::Scheme& scheme, int n,
                   attention::Pass pass, const plan::Machine& machine, plan::Program* program_out,
                   plan::SimulateResult* times_out) {
  Record r;
  r.scheme = attention::choose(p, scheme, n, pass, machine);
  const attention::Context context(p, r.scheme, n, pass);
  r.u = context.split.u;
  r.layout = p.layout;
  r.pass = pass;
  plan::Program program = attention::make_program(p, r.scheme, n, pass, machine);
  refuse_faults(program);
  take_counts(r, program, machine, attention::unit_elements(p, r.scheme, n));
  r.bytes_formula = attention::formula_bytes(p, r.scheme, n, pass);
  const std::vector<std::int64_t> dense = attention::formula_bytes(p, r.scheme, n, pass, true);
  for (std::size_t i = 0; i < dense.size(); ++i) r.bytes_skipped += dense[i] - r.bytes_formula[i];
  r.tiles_total = std::int64_t{context.split.r} * context.split.r * context.split.u;
  r.tiles_skipped = context.map.tiles_empty() * context.split.u;
  plan::SimulateResult times = plan::simulate(program, machine);
  r.predicted_s = times.makespan_s;
  for (const plan::RankTime& t : times.ranks)
    r.predicted_exposed_s = std::max(r.predicted_exposed_s, t.exposed_s);
  if (program_out) *program_out = std::move(program);
  if (times_out) *times_out = std::move(times);
  return r;
}

nlohmann::ordered_json to_json(const Record& r) {
  nlohmann::ordered_json j;
  j["scheme"] = attention::name_of(r.scheme.kind);
  j["name"] = r.scheme.text();
  j["a"] = r.scheme.a;
  j["b"] = r.scheme.b;
  j["u"] = r.u;
  j["inner"] = r.scheme.inner;
  j["layout"] = attention::name_of(r.layout);
  j["pass"] = attention::name_of(r.pass);
  j["bytes_sent"] = r.measured ? r.measured->bytes_sent : r.bytes_plan;
  j["bytes_formula"] = r.bytes_formula;
  j["bytes_inter_node"] = r.inter_bytes;
  j["volume_u"] = r.volume_u;
  for (const auto& [axis, volume] : r.volume_axes) j["volume_u_axes"][axis] = volume;
  if (r.measured) {
    const MeasuredPart& m = *r.measured;
    j["error_ratio"] = m.error_ratio ? nlohmann::ordered_json(*m.error_ratio) : nullptr;
    j["error_max_abs"] = m.error_max_abs ? nlohmann::ordered_json(*m.error_max_abs) : nullptr;
    j["error_worst_tensor"] = m.error_worst;
    j["seconds"] = {{"median", m.seconds.median}, {"min", m.seconds.min}, {"max", m.seconds.max}};
    j["exposed_comm_seconds"] = m.exposed_s;
    j["progress_seconds"] = m.progress_s;
    j["launch_seconds"] = m.launch_s;
    j["overlap_share"] = m.overlap_share;
    j["straggler"] = {{"rank", m.straggler}, {"ratio", m.straggler_ratio}};
    j["gflops_per_rank"] = m.gflops_per_rank;
    j["backends"] = m.backends;
  }
  j["predicted_seconds"] = r.predicted_s;
  j["predicted_exposed_seconds"] = r.predicted_exposed_s;
  j["flops"] = r.flops;
  j["imbalance"] = r.imbalance;
  j["tiles_total"] = r.tiles_total;
  j["tiles_skipped"] = r.tiles_skipped;
  j["bytes_skipped"] = r.bytes_skipped;
  j["peak_bytes"] = r.measured ? r.measured->peak_bytes : r.peak_plan;
  j["peak_bytes_plan"] = r.peak_plan;
  j["num_steps"] = r.num_steps;
  return j;
}

std::string table(const std::vector<Record>& records, bool measured) {
  std::string out = fmt::format("{:<20} {:<8} {:>11} {:>8} {:>8} {:>10}", "scheme", "pass",
                                "bytes/rank", "volume U", "skipped", "predicted");
  if (measured)
    out += fmt::format(" {:>10} {:>9} {:>9} {:>8} {:>6}", "measured", "exposed", "GFLOP/s", "error",
                       "bytes");
  else
    out += fmt::format(" {:>9} {:>9} {:>10}  {}", "exposed", "imbalance", "peak", "volume by axis");
  out += '\n';
  for (const Record& r : records) {
    out += fmt::format(
        "{:<20} {:<8} {:>11} {:>8.3f} {:>7.1f}% {:>10}", r.scheme.text(),
        attention::name_of(r.pass), units::format_bytes(static_cast<double>(r.bytes_max())),
        r.volume_u,
        100.0 * static_cast<double>(r.tiles_skipped) / static_cast<double>(r.tiles_total),
        units::format_seconds(r.predicted_s));
    if (r.measured) {
      const MeasuredPart& m = *r.measured;
      out +=
          fmt::format(" {:>10} {:>9} {:>9.2f} {:>8} {:>6}", units::format_seconds(m.seconds.median),
                      units::format_seconds(m.exposed_s), m.gflops_per_rank,
                      m.error_ratio ? fmt::format("{:.2f}x", *m.error_ratio) : "-",
                      r.bytes_agree() ? "equal" : "DIFFER");
    } else {
      std::string axes;
      for (const auto& [axis, u] : r.volume_axes)
        axes += fmt::format("{}{} {:.3f} U", axes.empty() ? "" : ", ", axis, u);
      out += fmt::format(" {:>9} {:>9.3f} {:>10}  {}", units::format_seconds(r.predicted_exposed_s),
                         r.imbalance, units::format_bytes(static_cast<double>(r.peak_plan)), axes);
    }
    out += '\n';
  }
  return out;
}

}  // namespace tessera::drivers

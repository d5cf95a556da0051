// SPDX-License-Identifier: Apache-2.0
#include "drivers/attention/output.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/version.hpp"
#include "drivers/attention/deck.hpp"

namespace tessera::drivers {

namespace {

io::Selection selection_of(const attention::Rows& rows, int dim) {
  io::Selection s;
  s.dim = dim;
  for (const attention::Segment& x : rows)
    if (!x.padding()) s.slabs.push_back({x.start, x.stride, x.count});
  return s;
}

/// The rows of a local tensor that are no padding, packed one after the other.
std::vector<char> without_padding(const attention::Rows& rows, const TensorRef& t, int dim,
                                  TensorRef& out) {
  const std::int64_t valid = attention::count_valid(rows), element = size_of(t.dtype);
  std::vector<char> space(static_cast<std::size_t>(t.count() * element) + 1);
  auto shape = t.shape;
  shape[static_cast<std::size_t>(dim)] = valid;
  out = dense(space.data(), t.dtype, shape);
  std::int64_t at = 0, to = 0;
  for (const attention::Segment& s : rows) {
    for (std::int64_t i = 0; i < s.count && !s.padding(); ++i, ++to)
      for (std::int64_t o = 0; o < (dim == 0 ? 1 : t.shape[0]); ++o) {
        const TensorRef from = dim == 0 ? t.slice({at + i, at + i + 1}, {0, t.shape[1]})
                                        : t.slice({o, o + 1}, {at + i, at + i + 1});
        const TensorRef into = dim == 0 ? out.slice({to, to + 1}, {0, t.shape[1]})
                                        : out.slice({o, o + 1}, {to, to + 1});
        std::copy_n(from.as<char>(), from.count() * element, into.as<char>());
      }
    at += s.count;
  }
  return space;
}

}  // namespace

Verdict judge(const std::vector<Record>& records, DType dtype, double max_ratio, double max_abs) {
  Verdict v;
  for (const Record& r : records) {
    const std::string what = fmt::format("{} {}", r.scheme.text(), attention::name_of(r.pass));
    if (!r.bytes_agree()) v.reasons.push_back(what + ": counted bytes differ from the formula");
    if (!r.measured || !r.measured->error_ratio) continue;
    const MeasuredPart& m = *r.measured;
    if (dtype == DType::f64 && !(*m.error_max_abs <= max_abs))
      v.reasons.push_back(fmt::format("{}: {} is off by {:.3g}, limit {:.3g}", what, m.error_worst,
                                      *m.error_max_abs, max_abs));
    if (dtype != DType::f64 && !(*m.error_ratio <= max_ratio))
      v.reasons.push_back(
          fmt::format("{}: error of {} is {:.3g} times that of the plain path, limit {:.3g}", what,
                      m.error_worst, *m.error_ratio, max_ratio));
  }
  return v;
}

std::string report_json(const Conditions& c, const std::vector<Record>& records,
                        const Verdict* verdict) {
  const attention::Problem& p = c.problem;
  nlohmann::ordered_json j;
  if (verdict) {
    j["verdict"] = verdict->valid() ? "VALID" : "INVALID";
    j["reasons"] = verdict->reasons;
  }
  j["ranks"] = c.ranks;
  j["dtype"] = name_of(p.dtype);
  j["shape"] = {{"batch", p.batch},
                {"sequence", p.sequence},
                {"key_sequence", p.key_sequence},
                {"query_heads", p.query_heads},
                {"kv_heads", p.kv_heads},
                {"head_dim", p.head_dim},
                {"value_dim", p.value_dim}};
  const std::int64_t area = p.mask.area();
  j["mask"] = {{"kind", p.mask.kind()},
               {"slices", p.mask.bands().size()},
               {"area", area},
               {"fraction", static_cast<double>(area) / (static_cast<double>(p.mask.rows()) *
                                                         static_cast<double>(p.mask.cols()))},
               {"hash", fmt::format("{:016x}", p.mask.hash())}};
  j["machine"] = {{"name", c.machine}, {"file", c.machine_file}};
  j["layout"] = attention::name_of(p.layout);
  j["softcap"] = p.softcap;
  j["sink"] = p.sink;
  if (verdict)
    j["conditions"] = {
        {"hosts", c.hosts},   {"cores_per_host", c.cores}, {"oversubscribed", c.oversubscribed},
        {"warmup", c.warmup}, {"repeats", c.repeats},      {"input", c.source},
        {"mpi", c.mpi},       {"device", c.device}};
  j["version"] = version_line();
  j["config"] = c.config;
  auto& runs = j["runs"] = nlohmann::ordered_json::array();
  for (const Record& r : records) runs.push_back(to_json(r));
  return j.dump(1) + "\n";
}

std::string result_line(const Conditions& c, const std::vector<Record>& records,
                        const Verdict& verdict) {
  std::string line = fmt::format(
      "RESULT verdict={} ranks={} oversubscribed={} dtype={} sequence={} heads={}/{} dim={} "
      "mask={}",
      verdict.valid() ? "VALID" : "INVALID", c.ranks, c.oversubscribed, name_of(c.problem.dtype),
      c.problem.sequence, c.problem.query_heads, c.problem.kv_heads, c.problem.head_dim,
      c.problem.mask.kind());
  for (attention::Pass pass : {attention::Pass::forward, attention::Pass::backward}) {
    const Record* best = nullptr;
    for (const Record& r : records)
      if (r.pass == pass && r.measured &&
          (!best || r.measured->seconds.median < best->measured->seconds.median))
        best = &r;
    if (!best) continue;
    std::string name = best->scheme.text();
    std::replace(name.begin(), name.end(), ' ', '_');
    line += fmt::format(" {}_best={} {}_seconds={:.6g}", attention::name_of(pass), name,
                        attention::name_of(pass), best->measured->seconds.median);
  }
  return line;
}

std::string group_of(std::size_t number, const Record& r) {
  return fmt::format("/runs/{:02} {} {}", number, r.scheme.text(), attention::name_of(r.pass));
}

void write_tensors(io::OutputFile& file, const std::string& group,
                   const attention::Session& session, const attention::PreparedPass& pass,
                   int rank) {
  const attention::Problem& p = session.problem();
  const attention::Split& split = pass.split();
  const auto q = attention::query_rows(p, split, rank), k = attention::key_rows(p, split, rank);
  auto put = [&](const char* name, const attention::Rows& rows, std::int64_t total) {
    const TensorRef t = session.tensor(name);
    file.create_dataset(group + "/" + name, t.dtype, {total, t.shape[1], t.shape[2]});
    TensorRef packed;
    const std::vector<char> space = without_padding(rows, t, 0, packed);
    file.write_slab(group + "/" + name, selection_of(rows, 0), packed);
  };
  if (pass.pass() == attention::Pass::backward) {
    put("dq", q, p.mask.rows());
    put("dk", k, p.mask.cols());
    put("dv", k, p.mask.cols());
    return;
  }
  put("o", q, p.mask.rows());
  const TensorRef lse = session.tensor("lse");
  const auto chunk = attention::query_chunk(p, split, split.outer_of(rank));
  io::Selection where = selection_of(chunk, 1);
  where.within[0] = attention::heads_of(p, split, split.inner_of(rank)).query;
  file.create_dataset(group + "/lse", lse.dtype, {p.query_heads, p.mask.rows()});
  TensorRef packed;
  const std::vector<char> space = without_padding(chunk, lse, 1, packed);
  file.write_slab(group + "/lse", where, packed);
}

void write_records(io::OutputFile& file, const Conditions& c, const std::vector<Record>& records,
                   const Verdict& verdict) {
  file.attribute("/", "schema", std::string("tessera.attention.results"));
  file.attribute("/", "schema_version", std::int64_t{1});
  file.attribute("/", "verdict", std::string(verdict.valid() ? "VALID" : "INVALID"));
  file.attribute("/", "version", version_line());
  file.attribute("/", "config", c.config);
  file.attribute("/", "input", c.source);
  file.attribute("/", "ranks", std::int64_t{c.ranks});
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Record& r = records[i];
    const std::string group = group_of(i, r);
    file.create_groups({group});
    file.attribute(group, "scheme", r.scheme.text());
    file.attribute(group, "pass", std::string(attention::name_of(r.pass)));
    file.attribute(group, "predicted_seconds", r.predicted_s);
    const auto n = static_cast<std::int64_t>(r.bytes_formula.size());
    file.write_array(group + "/bytes_formula", r.bytes_formula, {n});
    if (!r.measured) continue;
    file.write_array(group + "/bytes_sent", r.measured->bytes_sent, {n});
    file.write_array(group + "/seconds", r.measured->all_seconds,
                     {static_cast<std::int64_t>(r.measured->all_seconds.size())});
    file.attribute(group, "exposed_comm_seconds", r.measured->exposed_s);
    const auto steps = static_cast<std::int64_t>(r.measured->steps.size() / 4);
    if (steps > 0) file.write_array(group + "/steps", r.measured->steps, {steps, 4});
  }
}

}  // namespace tessera::drivers

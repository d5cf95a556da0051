// SPDX-License-Identifier: Apache-2.0
// Small JSON values by nlohmann, one at a time; the frame around them is written by hand, so that a
// program of a million steps streams.
#include "plan/export.hpp"

#include <algorithm>
#include <array>
#include <ostream>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "plan/check_rules.hpp"

namespace tessera::plan {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view name_of(Role role) {
  constexpr std::array<std::string_view, 4> names{"input", "output", "saved", "scratch"};
  return names[static_cast<std::size_t>(role)];
}

constexpr std::string_view name_of(Access access) {
  constexpr std::array<std::string_view, 3> names{"read", "write", "update"};
  return names[static_cast<std::size_t>(access)];
}

constexpr std::string_view name_of(QueueKind kind) {
  return kind == QueueKind::compute ? "compute" : "comm";
}

Json json_of(const Index& index) {
  switch (index.kind) {
    case Index::Kind::tile:
      return {{"tile", {index.i, index.j}}};
    case Index::Kind::chunk:
      return {{"chunk", index.i}};
    case Index::Kind::none:
      break;
  }
  return nullptr;
}

Json json_of(const Buffer& buffer) {
  Json json{{"name", buffer.name},
            {"role", name_of(buffer.role)},
            {"dtype", tessera::name_of(buffer.dtype)},
            {"shape", buffer.shape}};
  if (buffer.statistic) json["statistic"] = true;
  return json;
}

Json json_of(const Program& program, const Plan& plan, int number, const Step& step) {
  Json json{{"step", number},
            {"queue", static_cast<int>(step.queue)},
            {"kind", plan::name_of(step.kind)},
            {"label", step.label}};
  if (step.index.kind != Index::Kind::none) json["index"] = json_of(step.index);
  if (step.group >= 0) json["group"] = step.group;
  if (is_comm(step.kind)) {
    json["axis"] = program.axes[step.comm.axis].name;
    if (step.kind != StepKind::all_reduce) json["peer"] = step.comm.peer;
    json["key"] = step.comm.key;
    json["bytes"] = step.comm.bytes;
  } else {
    json["op"] = step.work.op;
    json["flops"] = step.work.flops;
    json["bytes"] = step.work.bytes;
  }
  if (step.num_after > 0) json["after"] = plan.after(step);
  Json uses = Json::array();
  for (const Use& use : plan.uses(step)) {
    uses.push_back({{"buffer", use.buffer},
                    {"access", name_of(use.access)},
                    {"d0", {use.d0.begin, use.d0.end}},
                    {"d1", {use.d1.begin, use.d1.end}}});
  }
  if (!uses.empty()) json["uses"] = std::move(uses);
  return json;
}

/// A list, one item a line.
template <class Items, class MakeJson>
void write_list(std::ostream& out, const Items& items, MakeJson&& make) {
  out << '[';
  int number = 0;
  for (const auto& item : items) {
    out << (number ? ",\n" : "\n") << make(item, number).dump();
    ++number;
  }
  out << ']';
}

void write_rank(std::ostream& out, const Program& program, int rank) {
  const Plan& plan = program.plans[rank];
  out << "{\"rank\": " << rank << ",\n\"buffers\": ";
  write_list(out, plan.buffers, [](const Buffer& b, int) { return json_of(b); });
  out << ",\n\"queues\": ";
  write_list(out, plan.queues, [](const Queue& q, int) {
    return Json{{"name", q.name}, {"kind", name_of(q.kind)}};
  });
  out << ",\n\"steps\": ";
  write_list(out, plan.steps,
             [&](const Step& s, int number) { return json_of(program, plan, number, s); });
  out << '}';
}

std::string join(std::span<const std::int32_t> numbers) {
  return fmt::format("{}", fmt::join(numbers, " "));
}

}  // namespace

std::string_view name_of(StepKind kind) {
  constexpr std::array<std::string_view, 5> names{"compute", "copy", "send", "recv", "all_reduce"};
  return names[static_cast<std::size_t>(kind)];
}

void write_json(const Program& program, std::ostream& out) {
  out << "{\"name\": " << Json(program.name).dump() << ",\n\"axes\": ";
  write_list(out, program.axes, [](const Axis& a, int) {
    return Json{{"name", a.name}, {"groups", a.groups}};
  });
  out << ",\n\"coverage\": ";
  write_list(out, program.coverage, [](const WorkItem& item, int) {
    return Json{{"label", item.label}, {"index", json_of(item.index)}};
  });
  out << ",\n\"ranks\": [";
  for (std::size_t r = 0; r < program.plans.size(); ++r) {
    out << (r ? ",\n" : "\n");
    write_rank(out, program, static_cast<int>(r));
  }
  out << "]}\n" << std::flush;
  if (!out) throw Error(Exit::io, fmt::format("cannot write the plan '{}' as JSON", program.name));
}

std::string table_of(const Program& program, int rank) {
  if (rank < 0 || rank >= static_cast<int>(program.plans.size())) {
    throw Error(Exit::usage,
                fmt::format("no rank {} in a plan of {} ranks", rank, program.plans.size()),
                fmt::format("one of 0 to {}", program.plans.size() - 1));
  }
  const Plan& plan = program.plans[rank];
  constexpr std::size_t k_columns = 8;
  using Row = std::array<std::string, k_columns>;
  std::vector<Row> rows{{"step", "queue", "kind", "label", "index", "peer", "bytes", "waits for"}};
  for (std::size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    const bool comm = is_comm(step.kind);
    rows.push_back({std::to_string(s), plan.queues[step.queue].name,
                    std::string(name_of(step.kind)), std::string(step.label), describe(step.index),
                    comm && step.comm.peer >= 0 ? std::to_string(step.comm.peer) : "-",
                    comm ? std::to_string(step.comm.bytes) : "-", join(plan.after(step))});
  }
  std::array<std::size_t, k_columns> width{};
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < k_columns; ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string text = fmt::format("{}, rank {} of {}\n", program.name, rank, program.plans.size());
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < k_columns; ++c) {
      const bool number = c == 0 || c == 5 || c == 6;
      line += number ? fmt::format("{:>{}}  ", row[c], width[c])
                     : fmt::format("{:<{}}  ", row[c], width[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace tessera::plan

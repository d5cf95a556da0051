// SPDX-License-Identifier: Apache-2.0
#include "drivers/common/machine_file.hpp"

#include <fmt/format.h>

namespace tessera::drivers {

namespace {

using config::Type;

constexpr double tiny = 1e-12;  // bandwidths and rates divide

std::vector<config::Key> node_keys() {
  return {
      {.name = "machine.name", .type = Type::text, .meaning = "name in reports"},
      {.name = "machine.ranks_per_node",
       .type = Type::integer,
       .fallback = 1,
       .minimum = 1,
       .meaning = "ranks r and s share a node when r / ranks_per_node is equal"},
      {.name = "machine.cores_per_node",
       .type = Type::integer,
       .fallback = 0,
       .minimum = 0,
       .meaning = "host ranks: more ranks than cores share them; 0 = a processor each"},
      {.name = "machine.overlap",
       .type = Type::real,
       .fallback = 1.0,
       .minimum = 0,
       .maximum = 1,
       .meaning = "speed of compute while a transfer moves, against compute alone"},
      {.name = "machine.memory_b_s",
       .type = Type::real,
       .unit = "bytes/s",
       .minimum = tiny,
       .meaning = "read and written by copies, merges and sums of one rank"},
      {.name = "machine.step_overhead_s",
       .type = Type::duration,
       .fallback = 0.0,
       .unit = "s",
       .meaning = "cost of starting any compute step"},
  };
}

std::vector<config::Key> link_keys(const std::string& tier, const std::string& where) {
  const std::string section = "machine." + tier;
  return {
      {.name = section + ".latency_s",
       .type = Type::duration,
       .unit = "s",
       .meaning = "of a message " + where},
      {.name = section + ".bandwidth_b_s",
       .type = Type::real,
       .unit = "bytes/s",
       .minimum = tiny,
       .meaning = "of a rank " + where + ", each way, while all ranks send and receive"},
  };
}

std::vector<config::Key> rate_keys() {
  return {
      {.name = "rates.op", .type = Type::text, .meaning = "operator, \"attention.forward\""},
      {.name = "rates.dtype",
       .type = Type::text,
       .choices = {"f64", "f32", "bf16", "f16"},
       .meaning = "element type of its first argument"},
      {.name = "rates.overhead_s",
       .type = Type::duration,
       .fallback = 0.0,
       .unit = "s",
       .meaning = "of one call"},
      {.name = "rates.flops_s",
       .type = Type::real,
       .unit = "flop/s",
       .minimum = tiny,
       .meaning = "unmasked cell and head: 2 (d + dv) forward, 2 (3d + 2dv) backward"},
  };
}

/// Six digits, more than any measurement has, as a float of TOML.
std::string number(double value) {
  const std::string text = fmt::format("{:.6g}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

plan::Tier tier_of(const config::Config& c, const std::string& section) {
  return {c.real(section + ".latency_s"), c.real(section + ".bandwidth_b_s")};
}

plan::Machine machine_of(const config::Config& c) {
  plan::Machine m;
  m.name = c.text("machine.name");
  m.ranks_per_node = static_cast<int>(c.integer("machine.ranks_per_node"));
  m.cores_per_node = static_cast<int>(c.integer("machine.cores_per_node"));
  m.intra = tier_of(c, "machine.intra");
  m.inter = tier_of(c, "machine.inter");
  m.overlap = c.real("machine.overlap");
  m.memory_b_s = c.real("machine.memory_b_s");
  m.step_overhead_s = c.real("machine.step_overhead_s");
  for (const config::Config& rate : c.list("rates")) {
    m.rates.push_back({rate.text("rates.op"), dtype_named(rate.text("rates.dtype")).value(),
                       rate.real("rates.overhead_s"), rate.real("rates.flops_s")});
  }
  return m;
}

}  // namespace

config::Table machine_table() {
  std::vector<config::Key> keys = node_keys();
  for (const config::Key& key : link_keys("intra", "inside a node")) keys.push_back(key);
  for (const config::Key& key : link_keys("inter", "between nodes")) keys.push_back(key);
  config::Table table(std::move(keys));
  table.add_list("rates", rate_keys());
  return table;
}

plan::Machine parse_machine(const std::string& text, const std::string& path) {
  // Without the environment: a machine file says the same on every host and in every job.
  return machine_of(config::load(machine_table(), config::Sources{path, text, {}, {}}));
}

plan::Machine read_machine(const std::string& path) {
  return parse_machine(config::read_sources(path).text, path);
}

plan::Machine read_machine(const parallel::Communicator& comm, const std::string& path) {
  std::string text;
  parallel::together(comm, [&] {
    if (comm.rank() == 0) text = config::read_sources(path).text;
  });
  comm.broadcast(text, 0);
  plan::Machine machine;
  parallel::together(comm, [&] { machine = parse_machine(text, path); });
  return machine;
}

std::string machine_text(const plan::Machine& m, const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += fmt::format("# {}\n", note);
  text += fmt::format(
      "[machine]\nname = \"{}\"\nranks_per_node = {}\ncores_per_node = {}\noverlap = {}\n"
      "memory_b_s = {}\nstep_overhead_s = {}\n",
      m.name, m.ranks_per_node, m.cores_per_node, number(m.overlap), number(m.memory_b_s),
      number(m.step_overhead_s));
  text += fmt::format("\n[machine.intra]\nlatency_s = {}\nbandwidth_b_s = {}\n",
                      number(m.intra.latency_s), number(m.intra.bandwidth_b_s));
  text += fmt::format("\n[machine.inter]\nlatency_s = {}\nbandwidth_b_s = {}\n",
                      number(m.inter.latency_s), number(m.inter.bandwidth_b_s));
  for (const plan::Rate& r : m.rates) {
    text += fmt::format("\n[[rates]]\nop = \"{}\"\ndtype = \"{}\"\noverhead_s = {}\nflops_s = {}\n",
                        r.op, name_of(r.dtype), number(r.overhead_s), number(r.flops_s));
  }
  return text;
}

}  // namespace tessera::drivers

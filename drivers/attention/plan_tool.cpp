// SPDX-License-Identifier: Apache-2.0
#include "drivers/attention/plan_tool.hpp"

#include <fmt/format.h>

#include <sstream>

#include "base/error.hpp"
#include "drivers/attention/machine.hpp"
#include "drivers/attention/output.hpp"
#include "drivers/attention/timeline.hpp"
#include "io/file_system.hpp"
#include "plan/export.hpp"
#include "trace/chrome.hpp"

namespace tessera::drivers {

namespace {

/// What a plan is needed for beyond its record.
void keep_program(const PlanRequest& request, const plan::Program& program,
                  const plan::SimulateResult& times, trace::Timeline& timeline,
                  std::ostringstream& programs) {
  if (!request.trace.empty()) append(timeline, simulated_timeline(program, times));
  if (!request.program_json.empty()) {
    programs << (programs.tellp() > 0 ? ",\n" : "[\n");
    plan::write_json(program, programs);
  }
  if (request.print_rank >= 0)
    fmt::print("plan of rank {}, {}\n{}\n", request.print_rank, program.name,
               plan::table_of(program, request.print_rank));
}

}  // namespace

int plan_attention(const config::Config& config, const MaskArrays& arrays,
                   const PlanRequest& request) {
  const auto n =
      request.ranks > 0 ? request.ranks : static_cast<int>(config.integer("parallel.context"));
  if (n < 1)
    throw config.error("parallel.context", "and --ranks was not given",
                       "say for how many ranks: --ranks 256");
  const std::string file =
      request.machine_file.empty() ? config.text("machine.file") : request.machine_file;
  const plan::Machine machine = load_machine(file);
  const attention::Problem problem = make_problem(config, arrays);
  const std::vector<attention::Scheme> schemes = make_schemes(config, problem, n);

  std::vector<Record> records;
  trace::Timeline timeline;
  std::ostringstream programs;
  for (const attention::Scheme& s : schemes)
    for (attention::Pass pass : make_passes(config)) {
      plan::Program program;
      plan::SimulateResult times;
      records.push_back(plan_record(problem, s, n, pass, machine, &program, &times));
      if (!records.back().bytes_agree())
        throw Error(Exit::invalid,
                    fmt::format("{}: bytes of the plan differ from the formula", program.name),
                    "this is a bug in the scheme; please report the deck");
      keep_program(request, program, times, timeline, programs);
    }

  const Conditions conditions{problem,
                              machine.name,
                              file,
                              "",
                              config::print_config(config),
                              "",
                              "",
                              n,
                              (n + machine.ranks_per_node - 1) / machine.ranks_per_node,
                              machine.cores_per_node,
                              false,
                              0,
                              0};
  if (request.json != "-") {
    fmt::print("{} on {} ranks, {} mask, layout {}, {}; machine model {}\n\n{}",
               shape_text(problem), n, problem.mask.kind(), attention::name_of(problem.layout),
               name_of(problem.dtype), machine.name, table(records, false));
    fmt::print("{} plan{} without a fault; bytes equal to the formulas\n", records.size(),
               records.size() == 1 ? "" : "s");
  }
  const std::string json = report_json(conditions, records, nullptr);
  if (request.json == "-")
    fmt::print("{}", json);
  else if (!request.json.empty())
    io::write_text_atomic(request.json, json);
  if (!request.trace.empty()) {
    timeline.title = "simulated on " + machine.name;
    trace::write_chrome_file(timeline, request.trace);
  }
  if (!request.program_json.empty())
    io::write_text_atomic(request.program_json, programs.str() + "]\n");
  return 0;
}

}  // namespace tessera::drivers

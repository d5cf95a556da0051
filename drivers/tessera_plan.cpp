// SPDX-License-Identifier: Apache-2.0
// tessera-plan: plans of a deck for any number of ranks, checked, counted, simulated and exported
// in one process. MPI is started only to read the arrays of a mask from HDF5.
#include <mpi.h>

#include "drivers/attention/inputs.hpp"
#include "drivers/attention/plan_tool.hpp"
#include "drivers/common/command_line.hpp"
#include "drivers/common/main.hpp"

#include "base/version.hpp"

namespace {

using namespace tessera;
using namespace tessera::drivers;

struct Options {
  std::string deck;
  std::vector<std::string> sets;
  PlanRequest request;
};

void add_options(CLI::App& app, Options& o) {
  app.add_option("DECK", o.deck, "deck in TOML, as for tessera-attention")->type_name("FILE");
  app.add_option("--ranks", o.request.ranks, "ranks that share the sequence")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option("--machine", o.request.machine_file,
                 "machine model, inputs/machines/*.toml or from tessera-comm")
      ->type_name("FILE");
  app.add_option("--set", o.sets, "another value for a key of the deck; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--json", o.request.json, "report as JSON, to standard output without a FILE")
      ->type_name("[FILE]")
      ->expected(0, 1)
      ->default_str("-");
  app.add_option("--trace", o.request.trace, "simulated timeline; ui.perfetto.dev opens it")
      ->type_name("FILE");
  app.add_option("--export", o.request.program_json, "the programs themselves as JSON")
      ->type_name("FILE");
  app.add_option("--print-plan", o.request.print_rank, "print the steps of this rank")
      ->type_name("RANK")
      ->expected(0, 1)
      ->default_str("0");
}

int run(int argc, char** argv, const Options& o) {
  const config::Config config = config::load(attention_table(), o.deck, o.sets);
  if (!mask_needs_file(config) || config.text("input.file").empty())
    return plan_attention(
        config, [](const std::string&) { return std::vector<std::int64_t>{}; }, o.request);
  const parallel::World guard(argc, argv);
  const parallel::Communicator self(MPI_COMM_SELF, "tessera-plan");
  AttentionInputs inputs(config, self);
  return plan_attention(config, inputs.mask_arrays(), o.request);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded_serial_main([&] {
    CLI::App app("Makes, checks, counts, simulates and exports plans without MPI ranks.",
                 "tessera-plan");
    app.set_version_flag("--version", version_line());
    app.require_subcommand(1);
    app.footer(
        "Example:\n  tessera-plan attention inputs/attention/long.toml --ranks 256 --machine "
        "inputs/machines/h100-8x400g.toml");
    Options options;
    CLI::App* attention = app.add_subcommand(
        "attention", "attention over a split sequence: all schemes of a deck side by side");
    add_options(*attention, options);
    if (const auto done = parse_command_line(app, argc, argv, true)) return *done;
    return run(argc, argv, options);
  });
}

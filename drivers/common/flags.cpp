// SPDX-License-Identifier: Apache-2.0
#include "drivers/common/flags.hpp"

#include <fmt/format.h>

#include "base/units.hpp"
#include "base/version.hpp"

namespace tessera::drivers {

namespace {

CLI::Validator duration(double& target) {
  return CLI::Validator(
      [&target](std::string& text) {
        const auto seconds = units::parse_duration(text);
        if (!seconds)
          return fmt::format("'{}' is no duration: write 90, 1.5s, 250ms or hh:mm:ss", text);
        target = *seconds;
        return std::string();
      },
      "");  // a name would stand behind that of the type in the help
}

constexpr const char* footer =
    "Examples:\n"
    "  mpirun -n 4 tessera-attention inputs/attention/quickstart.toml --out out/run1\n"
    "  ... --set attention.schemes=ring,mesh --set attention.sequence=8K\n"
    "  ... --check                 plans only: checked, counted, simulated\n"
    "  ... --print-config          all keys with values, meaning and origin\n"
    "Exit codes: 0 ok, 1 validation failed, 2 usage or deck, 3 environment, 4 file, 5 "
    "communication,\n"
    "  6 watchdog, 7 numerical, 75 stopped before the end (start again), 77 skipped";

}  // namespace

void add_flags(CLI::App& app, Flags& f) {
  app.set_version_flag("--version", version_line());
  app.footer(footer);
  app.add_option("INPUT", f.input, "deck in TOML; inputs/attention/ has commented ones")
      ->type_name("FILE");
  app.add_option("--set", f.sets, "another value for a key of the deck; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option_function<std::string>(
         "--seed", [&f](const std::string& n) { f.sets.push_back("input.seed=" + n); },
         "short for --set input.seed=N")
      ->type_name("N");
  app.add_option("--out", f.out, "folder of results.h5, report.json and trace.json")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--json", f.json, "report here instead of DIR/report.json")->type_name("FILE");
  app.add_option("--trace", f.trace,
                 "timeline here instead of DIR/trace.json; ui.perfetto.dev opens it")
      ->type_name("FILE");
  app.add_flag("--check", f.check,
               "check deck, inputs and plans, print what the plans say, run nothing");
  app.add_flag("--dry-run", f.dry_run,
               "run every scheme once, without warm-up, repeats and reference");
  app.add_flag("--print-config", f.print_config,
               "print all keys with values, meaning and origin, and end");
  app.add_flag("--print-plan", f.print_plan, "print rank 0's steps of the first scheme");
  app.add_flag("--keys", f.keys, "print the reference of all keys as Markdown, and end");
  app.add_option("--time-limit",
                 "end with code 75 before the scheme that would start after this time")
      ->check(duration(f.time_limit_s))
      ->type_name("hh:mm:ss");
  app.add_option("--watchdog", "end the job with code 6 when nothing happens for so long; 0 = off")
      ->check(duration(f.watchdog_s))
      ->type_name("SECONDS");
}

config::Config load_deck(const config::Table& table, const Flags& flags,
                         const parallel::Communicator& comm) {
  std::string packed;
  parallel::together(comm, [&] {
    if (comm.rank() == 0) packed = config::pack(config::read_sources(flags.input, flags.sets));
  });
  comm.broadcast(packed, 0);
  const config::Sources sources = config::unpack(packed);
  std::optional<config::Config> config;
  parallel::together(comm, [&] { config = config::load(table, sources); });
  return *config;
}

}  // namespace tessera::drivers

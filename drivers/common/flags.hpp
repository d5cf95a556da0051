// SPDX-License-Identifier: Apache-2.0
// The flags that the experiments share (architecture section 5), and the deck that they name.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "parallel/communicator.hpp"

namespace tessera::drivers {

struct Flags {
  std::string input;              ///< deck; empty = defaults only
  std::vector<std::string> sets;  ///< key=value
  std::string out = "out";        ///< folder of results
  std::string json, trace;        ///< empty = inside `out`
  bool check = false, dry_run = false, print_config = false, print_plan = false, keys = false;
  double time_limit_s = 0, watchdog_s = 0;
};

/// Adds all of them to an app whose name and description are set; `--seed N` becomes a --set.
void add_flags(CLI::App& app, Flags& flags);

/// The resolved deck, the same on all ranks: rank 0 reads file and environment.
/// Error(usage, io) on all ranks alike. Collective.
config::Config load_deck(const config::Table& table, const Flags& flags,
                         const parallel::Communicator& comm);

}  // namespace tessera::drivers

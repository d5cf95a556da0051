// SPDX-License-Identifier: Apache-2.0
// `tessera-plan attention`: makes, checks, counts and simulates the plans of a deck for any number
// of ranks, in one process.
#pragma once

#include <string>
#include <vector>

#include "drivers/attention/deck.hpp"

namespace tessera::drivers {

struct PlanRequest {
  int ranks = 0;             ///< 0: parallel.context of the deck
  std::string machine_file;  ///< empty: machine.file of the deck
  std::string json;          ///< "-": standard output; empty: none
  std::string trace;         ///< simulated timeline of all schemes; empty: none
  std::string program_json;  ///< the programs themselves; empty: none
  int print_rank = -1;       ///< prints this rank's steps; -1: none
};

/// Prints the schemes side by side. Error on a bad deck or a file that cannot be written.
int plan_attention(const config::Config& config, const MaskArrays& arrays,
                   const PlanRequest& request);

}  // namespace tessera::drivers

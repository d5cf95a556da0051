// SPDX-License-Identifier: Apache-2.0
// CLI11 with our manners: an unknown option gets the nearest name as a hint and exit code 2, and
// on several ranks only rank 0 speaks.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

#include "parallel/communicator.hpp"

namespace tessera::drivers {

/// Parses; returns an exit code when the program is done already (--help, --version: printed when
/// `speaks`). Error(usage) with a hint on a wrong command line.
std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv, bool speaks);

/// The same on all ranks, of which rank 0 speaks. AgreedError also when a rank was started with
/// other arguments than rank 0, since flags decide which collective calls follow. Collective.
std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv,
                                      const parallel::Communicator& world);

}  // namespace tessera::drivers

// SPDX-License-Identifier: Apache-2.0
// Machine models as TOML: inputs/machines/*.toml and what tessera-comm writes. The keys are
// declared in machine_table(); every file explains where its figures come from.
#pragma once

#include <string>
#include <vector>

#include "config/config.hpp"
#include "parallel/communicator.hpp"
#include "plan/machine.hpp"

namespace tessera::drivers {

/// The keys of a machine file: section [machine] and the list [[rates]].
config::Table machine_table();

/// `path` names the text in messages. Error(usage) with position on a key or value that is wrong.
plan::Machine parse_machine(const std::string& text, const std::string& path);

/// Reads a file. Error(io) if it cannot be read.
plan::Machine read_machine(const std::string& path);
/// The same on all ranks: rank 0 reads, all get the same machine or the same AgreedError.
plan::Machine read_machine(const parallel::Communicator& comm, const std::string& path);

/// The machine as a commented file that parse_machine reads back, to six digits. `notes` stand
/// at the top, one comment line each: how, where and when it was measured.
std::string machine_text(const plan::Machine& machine, const std::vector<std::string>& notes);

}  // namespace tessera::drivers

// SPDX-License-Identifier: Apache-2.0
// The machine model of a run: a file, or the built-in host (inputs/machines/local.toml).
#pragma once

#include <string>

#include "plan/machine.hpp"

namespace tessera::drivers {

extern const char* const built_in_machine;

/// Empty path: the built-in host. Error(usage, io).
plan::Machine load_machine(const std::string& path);

}  // namespace tessera::drivers

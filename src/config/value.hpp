// SPDX-License-Identifier: Apache-2.0
// Values of keys: from text, to TOML, and the checks of their range. Internal to config.
#pragma once

#include <string>
#include <string_view>

#include "config/table.hpp"

namespace tessera::config {

/// A value, or why it is none ("expected an integer, found '1.5'") and what to write instead.
struct Parsed {
  std::optional<Value> value;
  std::string problem;
  std::string hint;
};

/// From --set or the environment. Texts may stand in quotes; lists are "a,b" or ["a", "b"].
Parsed parse_value(const Key& key, std::string_view text);

/// From a value that already has a type (deck or default): converts integer to real, "8K" to a
/// size.
Parsed convert_value(const Key& key, const Value& raw);

/// As TOML: 128, 1.5, true, "text", ["a", "b"].
std::string to_toml(const Value& value);

}  // namespace tessera::config

// SPDX-License-Identifier: Apache-2.0
// A TOML text as a flat list of dotted keys with their places. Internal to config: the only file
// that knows toml11.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "config/table.hpp"

namespace tessera::config {

/// Where something stands: "deck.toml:3" and, for messages, that line with a caret below it.
struct Place {
  std::string origin;
  std::string excerpt;
  std::size_t line = 0;
};

/// One key = value. `value` is empty when TOML has a type that no key takes (dates, mixed lists);
/// `kind` names that type then.
struct Item {
  std::string name;
  std::optional<Value> value;
  std::string kind;
  Place place;
};

/// One [[list]] entry.
struct ListItem {
  std::string name;
  std::vector<Item> items;
  Place place;
};

struct Document {
  std::vector<Item> items;  ///< in the order of the lines
  std::vector<ListItem> lists;
};

/// Error(usage) with position on a syntax error.
Document parse_toml(const std::string& text, const std::string& path);

}  // namespace tessera::config

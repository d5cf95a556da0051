// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "config/config.hpp"
#include "config/value.hpp"

namespace tessera::config {
namespace {

struct Line {
  std::string key, value, comment, meaning;
};

/// Last part of a dotted name.
std::string leaf(const std::string& name) { return name.substr(name.rfind('.') + 1); }
std::string section_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

Value value_of(const Config& config, const Key& key) {
  switch (key.type) {
    case Type::boolean:
      return config.boolean(key.name);
    case Type::integer:
    case Type::size:
      return config.integer(key.name);
    case Type::real:
    case Type::duration:
      return config.real(key.name);
    case Type::text:
      return config.text(key.name);
    case Type::texts:
      return config.texts(key.name);
  }
  return false;
}

Line line_of(const Config& config, const Key& key) {
  const std::string unit =
      key.unit.empty() && key.type == Type::duration ? std::string(1, 's') : key.unit;
  return {leaf(key.name), to_toml(value_of(config, key)), config.origin(key.name),
          unit.empty() ? key.meaning : fmt::format("[{}] {}", unit, key.meaning)};
}

std::string print_lines(const std::vector<Line>& lines) {
  std::size_t key = 0, value = 0, comment = 0;
  for (const Line& l : lines) {
    key = std::max(key, l.key.size());
    value = std::max(value, l.value.size());
    comment = std::max(comment, l.comment.size());
  }
  std::string text;
  for (const Line& l : lines)
    text += fmt::format("{:<{}} = {:<{}}  # {:<{}}  {}\n", l.key, key, l.value, value, l.comment,
                        comment, l.meaning);
  return text;
}

}  // namespace

std::string print_config(const Config& config) {
  const std::vector<Key>& keys = config.table().keys();
  std::vector<std::string> sections;
  for (const Key& key : keys)
    if (std::find(sections.begin(), sections.end(), section_of(key.name)) == sections.end())
      sections.push_back(section_of(key.name));
  std::string text;
  for (const std::string& section : sections) {
    std::vector<Line> lines;
    for (const Key& key : keys)
      if (section_of(key.name) == section) lines.push_back(line_of(config, key));
    text += fmt::format("{}[{}]\n{}", text.empty() ? "" : "\n", section, print_lines(lines));
  }
  for (const auto& [name, table] : config.table().lists()) {
    for (const Config& item : config.list(name)) {
      std::vector<Line> lines;
      for (const Key& key : table.keys()) lines.push_back(line_of(item, key));
      text += fmt::format("{}[[{}]]\n{}", text.empty() ? "" : "\n", name, print_lines(lines));
    }
  }
  for (const std::string& o : config.overridden()) text += fmt::format("# {}\n", o);
  return text;
}

}  // namespace tessera::config

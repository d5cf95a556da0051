// SPDX-License-Identifier: Apache-2.0
#include "config/table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "config/value.hpp"

namespace tessera::config {
namespace {

/// The printed limit of a key: integers without a point.
std::string limit_text(const Key& key, double limit) {
  const bool whole = key.type == Type::integer || key.type == Type::size;
  return whole ? fmt::format("{:.0f}", limit) : fmt::format("{}", limit);
}

std::string range_text(const Key& key) {
  std::string text;
  if (std::isfinite(key.minimum)) text += ", at least " + limit_text(key, key.minimum);
  if (std::isfinite(key.maximum)) text += ", at most " + limit_text(key, key.maximum);
  return text;
}

std::string section_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

/// `text` for a cell of a Markdown table.
std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, 1, '\\');
  return text;
}

}  // namespace

std::string_view name_of(Type type) {
  switch (type) {
    case Type::boolean:
      return "boolean";
    case Type::integer:
      return "integer";
    case Type::real:
      return "real";
    case Type::text:
      return "text";
    case Type::texts:
      return "list of text";
    case Type::size:
      return "size";
    case Type::duration:
      return "duration";
  }
  return {};
}

Table::Table(std::vector<Key> keys) : keys_(std::move(keys)) {
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    Key& key = keys_[i];
    if (key.name.find('.') == std::string::npos)
      throw std::logic_error("key '" + key.name + "' has no section");
    if (key.meaning.empty()) throw std::logic_error("key '" + key.name + "' has no meaning");
    if (find(key.name) != &key) throw std::logic_error("key '" + key.name + "' declared twice");
    if (!key.fallback) continue;
    const Parsed p = convert_value(key, *key.fallback);
    if (!p.value) throw std::logic_error("default of '" + key.name + "': " + p.problem);
    key.fallback = *p.value;
  }
}

Table& Table::add_list(const std::string& name, std::vector<Key> item) {
  for (const Key& key : item)
    if (section_of(key.name) != name)
      throw std::logic_error("key '" + key.name + "' does not belong to list '" + name + "'");
  lists_.emplace(name, Table(std::move(item)));
  return *this;
}

const Key* Table::find(std::string_view name) const {
  const auto at =
      std::find_if(keys_.begin(), keys_.end(), [&](const Key& key) { return key.name == name; });
  return at == keys_.end() ? nullptr : &*at;
}

std::vector<std::string> Table::names() const {
  std::vector<std::string> names;
  for (const Key& key : keys_) names.push_back(key.name);
  for (const auto& [name, item] : lists_)
    for (const Key& key : item.keys()) names.push_back(key.name);
  return names;
}

std::string environment_name(std::string_view key) {
  std::string name = "TESSERA_";
  for (const char c : key) {
    if (c == '.') {
      name += "__";
    } else {
      name += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    }
  }
  return name;
}

std::string describe(const Key& key) {
  std::string text(name_of(key.type));
  if (!key.unit.empty()) text += " (" + key.unit + ")";
  if (!key.choices.empty()) text += fmt::format(" of {}", fmt::join(key.choices, ", "));
  text += range_text(key);
  return text + (key.fallback ? ", default " + to_toml(*key.fallback) : ", required");
}

std::string help(const Table& table) {
  std::size_t width = 0;
  for (const std::string& name : table.names()) width = std::max(width, name.size());
  std::string text;
  const auto add = [&](const Table& part) {
    for (const Key& key : part.keys())
      text += fmt::format("  {:<{}}  {}\n  {:<{}}  {}\n", key.name, width, key.meaning, "", width,
                          describe(key));
  };
  add(table);
  for (const auto& [name, item] : table.lists()) {
    text += fmt::format("  [[{}]] may stand several times:\n", name);
    add(item);
  }
  return text;
}

std::string reference_page(const Table& table, const std::string& title) {
  std::string text = fmt::format(
      "# {}\n\nEvery key with its default. Priority: default < file < environment\n"
      "(`{}`) < `--set key=value`.\n",
      title, environment_name(table.keys().empty() ? "section.key" : table.keys().front().name));
  std::string section;
  const auto add = [&](const Table& part, const char* open, const char* close) {
    for (const Key& key : part.keys()) {
      if (section_of(key.name) != section) {
        section = section_of(key.name);
        text += fmt::format("\n## {}{}{}\n\n| key | accepts | meaning |\n|---|---|---|\n", open,
                            section, close);
      }
      text += fmt::format("| `{}` | {} | {} |\n", key.name, cell(describe(key)), cell(key.meaning));
    }
  };
  add(table, "[", "]");
  for (const auto& [name, item] : table.lists()) add(item, "[[", "]]");
  return text;
}

}  // namespace tessera::config

// SPDX-License-Identifier: Apache-2.0
#include "config/document.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <toml.hpp>

#include "base/error.hpp"

namespace tessera::config {
namespace {

/// Where `word` stands as a whole word, npos when nowhere.
std::size_t find_word(const std::string& line, const std::string& word) {
  const auto inside = [&](std::size_t at) {
    return at < line.size() && (std::isalnum(static_cast<unsigned char>(line[at])) != 0 ||
                                line[at] == '_' || line[at] == '-');
  };
  std::size_t at = word.empty() ? std::string::npos : line.find(word);
  while (at != std::string::npos && ((at > 0 && inside(at - 1)) || inside(at + word.size())))
    at = line.find(word, at + 1);
  return at;
}

/// `word` is what the caret points at; when the line does not hold it, the parser's column is used.
Place place_of(const toml::source_location& at, const std::string& path, const std::string& word) {
  Place place;
  place.line = at.line();
  place.origin = fmt::format("{}:{}", path, at.line());
  std::string line = at.line_str();
  if (!line.empty() && line.back() == '\r') line.pop_back();
  std::size_t column = find_word(line, word);
  std::size_t length = word.size();
  if (column == std::string::npos) {
    column = at.column() > 0 ? at.column() - 1 : 0;
    length = 1;
  }
  const std::string number = fmt::format("{}", at.line());
  place.excerpt =
      fmt::format("{}\n  {} | {}\n  {:<{}} | {:<{}}{}", place.origin, number, line, "",
                  number.size(), "", column, std::string(std::max<std::size_t>(length, 1), '^'));
  return place;
}

std::optional<Value> to_value(const toml::value& v) {
  if (v.is_boolean()) return Value(v.as_boolean());
  if (v.is_integer()) return Value(static_cast<std::int64_t>(v.as_integer()));
  if (v.is_floating()) return Value(static_cast<double>(v.as_floating()));
  if (v.is_string()) return Value(v.as_string().str);
  if (v.is_array()) {
    Texts texts;
    for (const toml::value& item : v.as_array()) {
      if (!item.is_string()) return std::nullopt;
      texts.push_back(item.as_string().str);
    }
    return Value(texts);
  }
  return std::nullopt;
}

std::string kind_of(const toml::value& v) {
  return v.is_array() ? "a list whose items are not all texts" : "a date or time";
}

bool is_list_of_tables(const toml::value& v) {
  return v.is_array() && !v.as_array().empty() && v.as_array().front().is_table();
}

class Flattener {
 public:
  explicit Flattener(const std::string& path) : path_(path) {}

  void table(const toml::value& v, const std::string& prefix, std::vector<Item>& items,
             Document* lists) const {
    for (const auto& [key, value] : v.as_table()) {
      const std::string name = prefix.empty() ? key : prefix + "." + key;
      if (value.is_table()) {
        table(value, name, items, lists);
      } else if (is_list_of_tables(value) && lists) {
        for (const toml::value& entry : value.as_array()) {
          ListItem list{name, {}, place_of(entry.location(), path_, key)};
          if (entry.is_table()) table(entry, name, list.items, nullptr);
          lists->lists.push_back(std::move(list));
        }
      } else {
        const auto converted = to_value(value);
        items.push_back({name, converted, converted ? "" : kind_of(value),
                         place_of(value.location(), path_, key)});
      }
    }
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return std::tie(a.place.line, a.name) < std::tie(b.place.line, b.name);
    });
  }

 private:
  const std::string& path_;
};

/// First line of the parser's message without its tag and function name.
std::string reason_of(const std::string& what) {
  std::string line = what.substr(0, what.find('\n'));
  for (const std::string tag : {"[error] ", "toml::"}) {
    const std::size_t at = line.find(tag);
    if (at != std::string::npos) line.erase(0, at + tag.size());
  }
  const std::size_t colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

}  // namespace

Document parse_toml(const std::string& text, const std::string& path) {
  std::istringstream stream(text);
  try {
    Document document;
    Flattener(path).table(toml::parse(stream, path), "", document.items, &document);
    return document;
  } catch (const toml::exception& e) {
    throw Error(Exit::usage, fmt::format("'{}' is not valid TOML: {}", path, reason_of(e.what())),
                "correct the line shown; texts need quotes, lists are [\"a\", \"b\"]",
                place_of(e.location(), path, "").excerpt);
  } catch (const std::exception& e) {
    throw Error(Exit::usage, fmt::format("'{}' is not valid TOML: {}", path, reason_of(e.what())),
                "check that it is a text file in UTF-8", path);
  }
}

}  // namespace tessera::config

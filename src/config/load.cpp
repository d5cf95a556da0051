// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/suggest.hpp"
#include "config/config.hpp"
#include "config/document.hpp"
#include "config/value.hpp"

extern char** environ;

namespace tessera::config {
namespace {

constexpr std::string_view prefix = "TESSERA_";

bool is_key_variable(std::string_view name) {
  return name.starts_with(prefix) && name.find("__") != std::string_view::npos;
}

/// What to say about a name that is not in the table.
std::string unknown_hint(const Table& table, const std::string& name) {
  const std::string section = name.substr(0, name.rfind('.'));
  if (table.lists().contains(section))
    return fmt::format("'{0}' is a list of tables: begin each with [[{0}]] in the file", section);
  const std::vector<std::string> names = table.names();
  Texts below;
  for (const std::string& known : names)
    if (known.starts_with(name + ".")) below.push_back(known);
  if (!below.empty())
    return fmt::format("'{}' is a section; its keys are {}", name, fmt::join(below, ", "));
  const std::string near = nearest(name, names);
  return near.empty() ? "--print-config lists all keys" : fmt::format("did you mean '{}'?", near);
}

Error unknown_key(const Table& table, const std::string& name, const std::string& where) {
  return Error(Exit::usage, fmt::format("unknown key '{}'", name), unknown_hint(table, name),
               where);
}

}  // namespace

/// Fills a Config source by source; a later source overrides an earlier one.
class Loader {
 public:
  Loader(Config& config) : config_(config) {
    for (const Key& key : config.table_.keys())
      if (key.fallback) config.values_[key.name] = {*key.fallback, "default"};
  }

  void document(const Document& document) {
    for (const Item& item : document.items) take(item);
    for (const auto& [name, table] : config_.table_.lists()) config_.lists_[name];
    for (const ListItem& entry : document.lists) list_entry(entry);
  }

  void take(const Item& item) {
    const Key* key = config_.table_.find(item.name);
    if (!key) throw unknown_key(config_.table_, item.name, item.place.excerpt);
    Parsed p;
    if (item.value) {
      p = convert_value(*key, *item.value);
    } else {
      p = {std::nullopt, "found " + item.kind, describe(*key)};
    }
    set(*key, p, item.place.origin, item.place.excerpt);
  }

  void environment(const std::string& variable, const std::string& text) {
    for (const Key& key : config_.table_.keys())
      if (environment_name(key.name) == variable)
        return set(key, parse_value(key, text), "environment " + variable,
                   fmt::format("environment {}={}", variable, text));
    std::vector<std::string> names;
    for (const Key& key : config_.table_.keys()) names.push_back(environment_name(key.name));
    const std::string near = nearest(variable, names);
    throw Error(
        Exit::usage, fmt::format("environment variable {} names no key", variable),
        near.empty() ? "unset it" : fmt::format("did you mean {}? Otherwise unset it", near),
        fmt::format("environment {}={}", variable, text));
  }

  void override_by(const std::string& assignment) {
    const std::string where = "--set " + assignment;
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(Exit::usage, fmt::format("--set '{}' has no form key=value", assignment),
                  "write for example --set attention.sequence=8K", where);
    const std::string name = assignment.substr(0, equals);
    const Key* key = config_.table_.find(name);
    if (!key) throw unknown_key(config_.table_, name, where);
    set(*key, parse_value(*key, std::string_view(assignment).substr(equals + 1)), "--set", where);
  }

  void check_required(const std::string& path) const {
    for (const Key& key : config_.table_.keys())
      if (!config_.values_.contains(key.name))
        throw Error(Exit::usage, fmt::format("required key '{}' is missing", key.name),
                    fmt::format("add it ({}: {}) to the file or give --set {}=...", describe(key),
                                key.meaning, key.name),
                    path);
  }

 private:
  void set(const Key& key, const Parsed& p, const std::string& origin, const std::string& where) {
    if (!p.value)
      throw Error(Exit::usage, fmt::format("bad value of '{}': {}", key.name, p.problem), p.hint,
                  where);
    const auto old = config_.values_.find(key.name);
    if (old != config_.values_.end() && old->second.origin != "default")
      config_.overridden_.push_back(fmt::format("{}: {} ({}) overridden by {}: {}", key.name,
                                                to_toml(old->second.value), old->second.origin,
                                                origin, to_toml(*p.value)));
    config_.values_[key.name] = {*p.value, origin};
  }

  void list_entry(const ListItem& entry) {
    const auto table = config_.table_.lists().find(entry.name);
    if (table == config_.table_.lists().end())
      throw unknown_key(config_.table_, entry.name, entry.place.excerpt);
    Config item(table->second);
    Loader loader(item);
    for (const Item& i : entry.items) loader.take(i);
    loader.check_required(entry.place.excerpt);
    config_.lists_[entry.name].push_back(std::move(item));
  }

  Config& config_;
};

Config load(const Table& table, const Sources& sources) {
  Config config(table);
  Loader loader(config);
  loader.document(sources.path.empty() ? Document{} : parse_toml(sources.text, sources.path));
  for (const auto& [variable, text] : sources.environment) loader.environment(variable, text);
  for (const std::string& assignment : sources.sets) loader.override_by(assignment);
  loader.check_required(sources.path.empty() ? "no input file was given" : sources.path);
  return config;
}

Sources read_sources(const std::string& path, std::vector<std::string> sets) {
  Sources sources{path, {}, std::move(sets), {}};
  if (!path.empty()) {
    const bool folder = std::filesystem::is_directory(path);
    std::ifstream file(path, std::ios::binary);
    if (folder || !file)
      throw Error(Exit::io,
                  fmt::format("cannot read '{}': {}", path, std::strerror(folder ? EISDIR : errno)),
                  "check the path; decks are in inputs/");
    sources.text.assign(std::istreambuf_iterator<char>(file), {});
  }
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view entry(*variable);
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos || !is_key_variable(entry.substr(0, equals))) continue;
    sources.environment.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return sources;
}

std::string pack(const Sources& s) {
  // Bytes that are no UTF-8 must reach the TOML parser as they are: stored as numbers.
  const std::vector<std::uint8_t> text(s.text.begin(), s.text.end());
  const nlohmann::json j{
      {"path", s.path}, {"text", text}, {"sets", s.sets}, {"env", s.environment}};
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(j);
  return {bytes.begin(), bytes.end()};
}

Sources unpack(const std::string& packed) {
  const auto j = nlohmann::json::from_cbor(packed);
  const auto text = j.at("text").get<std::vector<std::uint8_t>>();
  return {j.at("path"), std::string(text.begin(), text.end()), j.at("sets"), j.at("env")};
}

const Config::Entry& Config::entry(std::string_view name) const {
  const auto at = values_.find(name);
  if (at == values_.end())
    throw std::logic_error(fmt::format("key '{}' is not in the table", name));
  return at->second;
}

template <class T>
const T& Config::get(std::string_view name) const {
  const T* value = std::get_if<T>(&entry(name).value);
  if (!value) throw std::logic_error(fmt::format("key '{}' has another type", name));
  return *value;
}

bool Config::boolean(std::string_view name) const { return get<bool>(name); }
std::int64_t Config::integer(std::string_view name) const { return get<std::int64_t>(name); }
double Config::real(std::string_view name) const { return get<double>(name); }
const std::string& Config::text(std::string_view name) const { return get<std::string>(name); }
const Texts& Config::texts(std::string_view name) const { return get<Texts>(name); }
const std::string& Config::origin(std::string_view name) const { return entry(name).origin; }

const std::vector<Config>& Config::list(std::string_view name) const {
  const auto at = lists_.find(name);
  if (at == lists_.end())
    throw std::logic_error(fmt::format("list '{}' is not in the table", name));
  return at->second;
}

Error Config::error(std::string_view name, const std::string& problem,
                    const std::string& hint) const {
  const Entry& e = entry(name);
  return Error(Exit::usage, fmt::format("{} = {} {}", name, to_toml(e.value), problem), hint,
               e.origin);
}

}  // namespace tessera::config

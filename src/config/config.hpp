// SPDX-License-Identifier: Apache-2.0
// Values of one run, each with its origin. Priority: default < file < environment < --set.
// Every error names key, value and what to write instead; the first one is thrown (exit code 2).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "config/table.hpp"

namespace tessera::config {

/// Everything that decides the values. Rank 0 reads it and sends it (`pack`) to the others, so that
/// a file system or an environment that differs between nodes cannot split the run.
struct Sources {
  std::string path;               ///< name of the deck in messages; empty = no file
  std::string text;               ///< its contents
  std::vector<std::string> sets;  ///< "key=value" of --set, in order
  std::map<std::string, std::string> environment;  ///< variables TESSERA_X__Y
};

/// Reads the file (empty path = none) and the environment. Error(io) when the file is not there.
Sources read_sources(const std::string& path, std::vector<std::string> sets = {});
std::string pack(const Sources& sources);
Sources unpack(const std::string& packed);

class Config {
 public:
  // Typed values. std::logic_error when the key is not declared or has another type.
  bool boolean(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;  ///< integer and size keys
  double real(std::string_view name) const;           ///< real keys, duration keys in seconds
  const std::string& text(std::string_view name) const;
  const Texts& texts(std::string_view name) const;

  /// "default", "deck.toml:12", "environment TESSERA_A__B" or "--set".
  const std::string& origin(std::string_view name) const;
  /// True when the value does not come from the default.
  bool given(std::string_view name) const { return origin(name) != "default"; }

  /// The items of an array of tables, in the order of the file.
  const std::vector<Config>& list(std::string_view name) const;

  /// "attention.sequence: 4096 (deck.toml:3) overridden by --set: 8192", one per override.
  const std::vector<std::string>& overridden() const { return overridden_; }

  /// Error(usage) about a value that only fits badly to others: names key, value and origin.
  ///   throw config.error("attention.mesh.a", "does not divide 6 ranks", "use 1, 2, 3 or 6");
  Error error(std::string_view name, const std::string& problem, const std::string& hint) const;

  const Table& table() const { return table_; }

 private:
  friend Config load(const Table& table, const Sources& sources);
  friend class Loader;
  struct Entry {
    Value value;
    std::string origin;
  };
  explicit Config(const Table& table) : table_(table) {}
  const Entry& entry(std::string_view name) const;
  template <class T>
  const T& get(std::string_view name) const;

  Table table_;
  std::map<std::string, Entry, std::less<>> values_;
  std::map<std::string, std::vector<Config>, std::less<>> lists_;
  std::vector<std::string> overridden_;
};

Config load(const Table& table, const Sources& sources);
inline Config load(const Table& table, const std::string& path,
                   std::vector<std::string> sets = {}) {
  return load(table, read_sources(path, std::move(sets)));
}

/// All values as aligned TOML with unit, meaning and origin in comments. Feeding it back as a file
/// gives the same values.
std::string print_config(const Config& config);

}  // namespace tessera::config

// SPDX-License-Identifier: Apache-2.0
// The table of keys: a driver declares every key it reads once; parsing, checks, help, the printed
// configuration and the reference page all come from it.
//
//   const Table table({
//       {.name = "attention.head_dim", .type = Type::integer, .fallback = 128,
//        .minimum = 1, .meaning = "elements of one query or key vector"},
//       {.name = "attention.schemes", .type = Type::texts, .fallback = Texts{"ring"},
//        .choices = {"ring", "mesh"}, .meaning = "schemes to run"},
//       {.name = "parallel.memory", .type = Type::size, .fallback = "2G", .unit = "bytes",
//        .meaning = "memory of one rank"}});
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::config {

using Texts = std::vector<std::string>;
/// boolean | integer, size | real, duration (seconds) | text | texts
using Value = std::variant<bool, std::int64_t, double, std::string, Texts>;

enum class Type : std::uint8_t {
  boolean,
  integer,
  real,
  text,
  texts,    ///< list of text; also "a,b" in --set and in the environment
  size,     ///< integer that may be written "8K", "128M", "1G" (binary)
  duration  ///< seconds; may be written "90s", "1.5us" or "hh:mm:ss"
};
std::string_view name_of(Type type);

struct Key {
  std::string name;  ///< dotted: "attention.head_dim"
  Type type = Type::text;
  std::optional<Value> fallback = {};  ///< default value; none = the key is required
  std::string unit = {};               ///< "tokens", "bytes", ...; empty = a plain number or text
  Texts choices = {};                  ///< permitted texts; empty = any
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  std::string meaning = {};  ///< one line
};

/// Keys in the order of declaration. Throws std::logic_error on a declaration that contradicts
/// itself (name without a dot, twice the same name, default that its own checks refuse).
class Table {
 public:
  explicit Table(std::vector<Key> keys);

  /// Declares an array of tables: [[rates]] with the keys of `item`, named "rates.op" and so on.
  Table& add_list(const std::string& name, std::vector<Key> item);

  const std::vector<Key>& keys() const { return keys_; }
  const std::map<std::string, Table>& lists() const { return lists_; }
  const Key* find(std::string_view name) const;  ///< nullptr when not declared
  std::vector<std::string> names() const;

 private:
  std::vector<Key> keys_;
  std::map<std::string, Table> lists_;
};

/// "TESSERA_ATTENTION__HEAD_DIM" for "attention.head_dim".
std::string environment_name(std::string_view key);

/// What the key accepts, in words: "integer (tokens), at least 1, default 128".
std::string describe(const Key& key);

/// Aligned list of all keys for `--help` and the like: name, what it accepts, meaning.
std::string help(const Table& table);

/// Markdown page with one table per section.
std::string reference_page(const Table& table, const std::string& title);

}  // namespace tessera::config

// SPDX-License-Identifier: Apache-2.0
#include "config/value.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "base/suggest.hpp"
#include "base/units.hpp"

namespace tessera::config {
namespace {

std::string kind_of(const Value& value) {
  constexpr const char* names[] = {"a boolean", "an integer", "a real number", "a text", "a list"};
  return names[value.index()];
}

std::string expected(Type type) {
  switch (type) {
    case Type::boolean:
      return "true or false";
    case Type::integer:
      return "an integer";
    case Type::real:
      return "a number";
    case Type::text:
      return "a text";
    case Type::texts:
      return "a list of texts";
    case Type::size:
      return "an integer or a size such as \"8K\", \"128M\", \"1G\" (binary)";
    case Type::duration:
      return "seconds, \"90s\", \"250ms\", \"1.5us\" or \"hh:mm:ss\"";
  }
  return {};
}

Parsed refuse(const Key& key, std::string_view found) {
  return {std::nullopt, fmt::format("expected {}, found {}", expected(key.type), found),
          describe(key)};
}

Parsed check_range(const Key& key, double value, Value result) {
  if (std::isfinite(value) && value >= key.minimum && value <= key.maximum)
    return {std::move(result), {}, {}};
  const bool low = value < key.minimum;
  const std::string limit =
      to_toml(key.type == Type::real || key.type == Type::duration
                  ? Value(low ? key.minimum : key.maximum)
                  : Value(static_cast<std::int64_t>(low ? key.minimum : key.maximum)));
  if (!std::isfinite(value)) return refuse(key, "a number that is not finite");
  return {std::nullopt,
          fmt::format("{} is {} the {} {}", to_toml(result), low ? "below" : "above",
                      low ? "smallest permitted value" : "largest permitted value", limit),
          describe(key)};
}

Parsed check_choice(const Key& key, const std::string& text) {
  if (key.choices.empty()) return {Value(text), {}, {}};
  for (const std::string& choice : key.choices)
    if (choice == text) return {Value(text), {}, {}};
  const std::string near = nearest(text, key.choices);
  return {std::nullopt, fmt::format("'{}' is none of {}", text, fmt::join(key.choices, ", ")),
          near.empty() ? "choose one of these" : fmt::format("did you mean '{}'?", near)};
}

Parsed check_list(const Key& key, const Texts& list) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    Parsed p = check_choice(key, list[i]);
    if (!p.value) return p;
    for (std::size_t j = 0; j < i; ++j)
      if (list[i] == list[j] && !key.choices.empty())
        return {std::nullopt, fmt::format("'{}' stands twice in the list", list[i]),
                "name it once"};
  }
  return {Value(list), {}, {}};
}

std::string_view trim(std::string_view s) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!s.empty() && blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && blank(s.back())) s.remove_suffix(1);
  return s;
}

std::string unquote(std::string_view s) {
  if (s.size() >= 2 && (s.front() == '"' || s.front() == '\'') && s.back() == s.front())
    s = s.substr(1, s.size() - 2);
  return std::string(s);
}

Texts split_list(std::string_view s) {
  if (s.size() >= 2 && s.front() == '[' && s.back() == ']') s = trim(s.substr(1, s.size() - 2));
  Texts list;
  while (!s.empty()) {
    const std::size_t comma = s.find(',');
    list.push_back(unquote(trim(s.substr(0, comma))));
    s = comma == std::string_view::npos ? std::string_view{} : s.substr(comma + 1);
  }
  return list;
}

}  // namespace

Parsed convert_value(const Key& key, const Value& raw) {
  const auto* integer = std::get_if<std::int64_t>(&raw);
  const auto* real = std::get_if<double>(&raw);
  const auto* text = std::get_if<std::string>(&raw);
  switch (key.type) {
    case Type::boolean:
      if (std::holds_alternative<bool>(raw)) return {raw, {}, {}};
      break;
    case Type::integer:
      if (integer) return check_range(key, static_cast<double>(*integer), raw);
      break;
    case Type::size:
      if (integer) return check_range(key, static_cast<double>(*integer), raw);
      if (text)
        if (const auto n = units::parse_size(*text))
          return check_range(key, static_cast<double>(*n), Value(*n));
      break;
    case Type::real:
    case Type::duration:
      if (integer) return check_range(key, static_cast<double>(*integer), double(*integer));
      if (real && (key.type == Type::real || *real >= 0)) return check_range(key, *real, raw);
      if (text && key.type == Type::duration)
        if (const auto s = units::parse_duration(*text)) return check_range(key, *s, Value(*s));
      break;
    case Type::text:
      if (text) return check_choice(key, *text);
      break;
    case Type::texts:
      if (const auto* list = std::get_if<Texts>(&raw)) return check_list(key, *list);
      break;
  }
  return refuse(key, fmt::format("{} {}", kind_of(raw), to_toml(raw)));
}

Parsed parse_value(const Key& key, std::string_view written) {
  const std::string_view text = trim(written);
  switch (key.type) {
    case Type::boolean:
      if (text == "true" || text == "false") return {Value(text == "true"), {}, {}};
      break;
    case Type::integer:
      if (const auto n = units::parse_integer(text)) return convert_value(key, *n);
      break;
    case Type::real:
      if (const auto x = units::parse_real(text)) return convert_value(key, *x);
      break;
    case Type::size:
    case Type::duration: {
      Parsed p = convert_value(key, unquote(text));
      if (p.value || p.problem.find("permitted") != std::string::npos) return p;
      if (const auto n = units::parse_integer(text)) return convert_value(key, *n);
      break;
    }
    case Type::text:
      return convert_value(key, unquote(text));
    case Type::texts:
      return convert_value(key, split_list(text));
  }
  return refuse(key, fmt::format("'{}'", text));
}

namespace {

std::string quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string real_to_toml(double x) {
  std::string s = fmt::format("{}", x);
  // TOML tells a real from an integer by its point or exponent.
  if (std::isfinite(x) && s.find_first_of(".e") == std::string::npos) s += ".0";
  return s;
}

}  // namespace

std::string to_toml(const Value& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* n = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *n);
  if (const auto* x = std::get_if<double>(&value)) return real_to_toml(*x);
  if (const auto* s = std::get_if<std::string>(&value)) return quote(*s);
  Texts quoted;
  for (const std::string& s : std::get<Texts>(value)) quoted.push_back(quote(s));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

}  // namespace tessera::config

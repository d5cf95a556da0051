// SPDX-License-Identifier: Apache-2.0
#include "base/units.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace tessera::units {
namespace {

/// Number at the start of `text`, which is shortened by what was read.
template <class T>
std::optional<T> take_number(std::string_view& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

/// Power of 1024 of a size suffix, -1 when it is none.
int binary_power(std::string_view suffix) {
  if (suffix.empty()) return 0;
  const std::size_t power = std::string_view("KMGT").find(upper(suffix[0]));
  const std::string_view rest = suffix.substr(1);
  if (power == std::string_view::npos || !(rest.empty() || rest == "iB" || rest == "ib")) return -1;
  return static_cast<int>(power) + 1;
}

std::optional<double> parse_clock(std::string_view text) {
  std::array<std::int64_t, 3> part{};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t before = text.size();
    if (text.empty() || text[0] == '-') return std::nullopt;
    const auto value = take_number<std::int64_t>(text);
    if (!value) return std::nullopt;
    part[i] = *value;
    if (i > 0 && (before - text.size() != 2 || part[i] > 59)) return std::nullopt;
    if (i == 2)
      return text.empty() ? std::optional(3600.0 * part[0] + 60.0 * part[1] + part[2])
                          : std::nullopt;
    if (text.empty() || text[0] != ':') return std::nullopt;
    text.remove_prefix(1);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const auto value = take_number<std::int64_t>(text);
  return text.empty() ? value : std::nullopt;
}

std::optional<double> parse_real(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const auto value = take_number<double>(text);
  return text.empty() && value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<std::int64_t> parse_size(std::string_view text) {
  const auto value = take_number<std::int64_t>(text);
  const int power = value ? binary_power(text) : -1;
  if (power < 0 || *value < 0) return std::nullopt;
  std::int64_t result = 0;
  if (__builtin_mul_overflow(*value, std::int64_t{1} << (10 * power), &result)) return std::nullopt;
  return result;
}

std::optional<double> parse_duration(std::string_view text) {
  if (text.find(':') != std::string_view::npos) return parse_clock(text);
  const auto value = take_number<double>(text);
  if (!value || !std::isfinite(*value) || *value < 0) return std::nullopt;
  if (text.empty() || text == "s") return *value;
  if (text == "ms") return *value * 1e-3;
  if (text == "us") return *value * 1e-6;
  if (text == "ns") return *value * 1e-9;
  return std::nullopt;
}

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 6> unit{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t i = 0;
  while (std::abs(bytes) >= 1024 && i + 1 < unit.size()) {
    bytes /= 1024;
    ++i;
  }
  return i == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, unit[i]);
}

std::string format_seconds(double s) {
  const double a = std::abs(s);
  if (a == 0) return "0 s";
  if (a < 1e-6) return fmt::format("{:.1f} ns", s * 1e9);
  if (a < 1e-3) return fmt::format("{:.2f} us", s * 1e6);
  if (a < 1) return fmt::format("{:.3f} ms", s * 1e3);
  if (a < 60) return fmt::format("{:.3f} s", s);
  const auto whole = static_cast<std::int64_t>(std::llround(a));
  return fmt::format("{}{}:{:02}:{:02}", s < 0 ? "-" : "", whole / 3600, whole / 60 % 60,
                     whole % 60);
}

std::string format_rate(double per_second, std::string_view unit) {
  constexpr std::array<const char*, 6> prefix{"", "k", "M", "G", "T", "P"};
  std::size_t i = 0;
  while (std::abs(per_second) >= 1000 && i + 1 < prefix.size()) {
    per_second /= 1000;
    ++i;
  }
  return fmt::format("{:.4g} {}{}", per_second, prefix[i], unit);
}

}  // namespace tessera::units

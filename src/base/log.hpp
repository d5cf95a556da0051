// SPDX-License-Identifier: Apache-2.0
// Messages to people, on stderr (stdout carries results). Rank 0 logs everything; the others only
// warnings and errors, with the prefix "[rank r host]". Repeats of one message within five seconds
// are merged and counted.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace tessera::log {

/// To be called once, when rank and host are known. Before that the process logs as rank 0.
void setup(int rank, const std::string& host);

void info(const std::string& text);
void warn(const std::string& text);
void error(const std::string& text);

/// The same with fmt arguments.
template <class First, class... Rest>
void info(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) {
  info(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...));
}
template <class First, class... Rest>
void warn(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) {
  warn(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...));
}
template <class First, class... Rest>
void error(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) {
  error(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...));
}

}  // namespace tessera::log

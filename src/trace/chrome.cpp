// SPDX-License-Identifier: Apache-2.0
// The frame of an event is formatted by hand, since a timeline has millions; every string goes
// through nlohmann's escaping, with invalid UTF-8 replaced.
#include "trace/chrome.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <ostream>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "trace/tracks.hpp"

namespace tessera::trace {

namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

constexpr std::string_view name_of(Category category) {
  constexpr std::array<std::string_view, 4> names{"compute", "comm", "copy", "wait"};
  return names[static_cast<std::size_t>(category)];
}

/// Microseconds with three decimals from whole nanoseconds, without rounding.
std::string micros(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

/// Events one a line; the separator goes before an event, so that no comma trails.
class Lines {
 public:
  explicit Lines(std::ostream& out) : out_(out) { out_ << '['; }
  void add(std::string_view event) {
    out_ << (first_ ? "\n" : ",\n") << event;
    first_ = false;
  }
  void close() { out_ << "\n]\n" << std::flush; }

 private:
  std::ostream& out_;
  bool first_ = true;
};

void write_names(const Timeline& timeline, const Tracks& tracks, Lines& lines) {
  auto meta = [&](std::size_t rank, std::size_t track, std::string_view what,
                  const std::string& value) {
    lines.add(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{{}}}}})", rank,
                          track, what, value));
  };
  for (std::size_t r = 0; r < tracks.names.size(); ++r) {
    const std::string name =
        r < timeline.ranks.size() ? timeline.ranks[r] : fmt::format("rank {}", r);
    meta(r, 0, "process_name", "\"name\":" + quoted(name));
    meta(r, 0, "process_sort_index", fmt::format("\"sort_index\":{}", r));
    if (!timeline.title.empty()) {
      meta(r, 0, "process_labels", "\"labels\":" + quoted(timeline.title));
    }
    for (std::size_t t = 0; t < tracks.names[r].size(); ++t) {
      meta(r, t, "thread_name", "\"name\":" + quoted(tracks.names[r][t]));
      meta(r, t, "thread_sort_index", fmt::format("\"sort_index\":{}", t));
    }
  }
}

void write_event(const PlacedEvent& placed, Lines& lines) {
  const Event& e = *placed.event;
  std::string args;
  auto arg = [&](std::string_view key, const std::string& value) {
    args += fmt::format("{}\"{}\":{}", args.empty() ? "" : ",", key, value);
  };
  if (e.step >= 0) arg("step", std::to_string(e.step));
  if (!e.detail.empty()) arg("detail", quoted(e.detail));
  if (e.bytes > 0) arg("bytes", std::to_string(e.bytes));
  if (e.peer >= 0) arg("peer", std::to_string(e.peer));
  lines.add(fmt::format(
      R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}","args":{{{}}}}})",
      e.rank, placed.track, micros(placed.begin_ns), micros(placed.end_ns - placed.begin_ns),
      quoted(e.name), name_of(e.category), args));
}

struct Arrow {
  const PlacedEvent* from = nullptr;
  const PlacedEvent* to = nullptr;
};

std::vector<Arrow> find_arrows(const Tracks& tracks) {
  std::unordered_map<std::int64_t, std::size_t> place;
  std::vector<Arrow> arrows;
  for (const PlacedEvent& placed : tracks.events) {
    if (placed.event->flow <= 0) continue;
    const auto [it, is_new] = place.emplace(placed.event->flow, arrows.size());
    if (is_new) arrows.emplace_back();
    Arrow& arrow = arrows[it->second];
    (placed.event->flow_start ? arrow.from : arrow.to) = &placed;
  }
  std::erase_if(arrows, [](const Arrow& a) { return !a.from || !a.to; });
  return arrows;
}

void write_arrows(const Tracks& tracks, Lines& lines) {
  std::int64_t id = 0;
  for (const Arrow& arrow : find_arrows(tracks)) {
    auto write = [&](const PlacedEvent& at, std::int64_t ns, std::string_view phase) {
      lines.add(fmt::format(
          R"({{"ph":{},"id":{},"pid":{},"tid":{},"ts":{},"name":"message","cat":"message"}})",
          phase, id, at.event->rank, at.track, micros(ns)));
    };
    ++id;
    // An arrow must not run back in time, and its end has to lie inside the slice of the receive.
    const std::int64_t end = std::clamp(arrow.from->begin_ns, arrow.to->begin_ns, arrow.to->end_ns);
    write(*arrow.from, arrow.from->begin_ns, R"("s")");
    write(*arrow.to, end, R"("f","bp":"e")");
  }
}

}  // namespace

void write_chrome(const Timeline& timeline, std::ostream& out) {
  const Tracks tracks = lay_out(timeline);
  Lines lines(out);
  write_names(timeline, tracks, lines);
  for (const PlacedEvent& placed : tracks.events) write_event(placed, lines);
  write_arrows(tracks, lines);
  lines.close();
}

void write_chrome_file(const Timeline& timeline, const std::string& path) {
  const std::string unfinished = path + ".part";
  auto fail = [&](std::string_view what) {
    const std::string reason = std::strerror(errno);
    std::remove(unfinished.c_str());
    throw Error(Exit::io, fmt::format("cannot {} trace '{}': {}", what, path, reason),
                "is the folder there, writable, and not full?");
  };
  errno = 0;
  std::ofstream out(unfinished, std::ios::binary);
  if (!out) fail("create");
  try {
    write_chrome(timeline, out);
  } catch (...) {  // an event without sense
    std::remove(unfinished.c_str());
    throw;
  }
  out.close();
  if (!out) fail("write");
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) fail("rename");
}

std::string repaired(std::string_view text) {
  std::string result = "[";
  std::size_t begin = text.find('[');
  begin = begin == std::string_view::npos ? text.size() : begin + 1;
  bool first = true;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with(',')) line.remove_suffix(1);
    if (!nlohmann::json::accept(line) || !line.starts_with('{')) continue;
    result += (first ? "\n" : ",\n");
    result += line;
    first = false;
  }
  return result + "\n]\n";
}

}  // namespace tessera::trace

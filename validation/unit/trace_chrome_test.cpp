// SPDX-License-Identifier: Apache-2.0
// The trace file, read back by a strict JSON reader; cases OB-108 to OB-112 of the field reports.
#include "trace/chrome.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/error.hpp"
#include "trace/clock.hpp"

namespace tessera::trace {
namespace {

using nlohmann::json;

std::string written(const Timeline& timeline) {
  std::ostringstream out;
  write_chrome(timeline, out);
  return out.str();
}

/// Events of one phase, in file order.
std::vector<json> phase(const json& file, const std::string& ph) {
  std::vector<json> found;
  for (const json& e : file) {
    if (e["ph"] == ph) found.push_back(e);
  }
  return found;
}

Event event(std::string name, double begin_s, double end_s, int rank = 0, int queue = 0) {
  Event e;
  e.name = std::move(name);
  e.begin_s = begin_s;
  e.end_s = end_s;
  e.rank = rank;
  e.queue = queue;
  return e;
}

std::int64_t nanos(const json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

/// Replays every track with a stack, independent of the writer. Returns the number of crossings;
/// `depth` gets the nesting level of each slice by name.
int crossings(const json& file, std::map<std::string, int>* depth = nullptr) {
  std::map<std::pair<int, int>, std::vector<std::int64_t>> open;
  int count = 0;
  for (const json& e : phase(file, "X")) {
    auto& stack = open[{e["pid"].get<int>(), e["tid"].get<int>()}];
    const std::int64_t begin = nanos(e["ts"]), end = begin + nanos(e["dur"]);
    while (!stack.empty() && stack.back() <= begin) stack.pop_back();
    if (!stack.empty() && stack.back() < end) ++count;
    stack.push_back(end);
    if (depth) (*depth)[e["name"]] = static_cast<int>(stack.size()) - 1;
  }
  return count;
}

TEST(TraceChrome, ob108_crossing_events_get_their_own_track) {
  Timeline t;
  t.events = {event("a", 0, 10e-6), event("b", 5e-6, 15e-6)};
  const json file = json::parse(written(t));
  const auto slices = phase(file, "X");
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0]["dur"], 10.0);
  EXPECT_EQ(slices[1]["dur"], 10.0);
  EXPECT_NE(slices[0]["tid"], slices[1]["tid"]);
  EXPECT_EQ(crossings(file), 0);
  std::vector<std::string> names;
  for (const json& m : phase(file, "M")) {
    if (m["name"] == "thread_name") names.push_back(m["args"]["name"]);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"queue 0", "queue 0 (2)"}));
}

TEST(TraceChrome, ob108_random_timelines_never_cross) {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> tick(0, 40);
  for (int round = 0; round < 200; ++round) {
    Timeline t;
    for (int i = 0; i < 60; ++i) {
      const int begin = tick(random);
      t.events.push_back(
          event("e", begin, begin + tick(random) / 4, tick(random) % 3, tick(random) % 2));
    }
    const json file = json::parse(written(t));
    EXPECT_EQ(crossings(file), 0);
    EXPECT_EQ(phase(file, "X").size(), 60u);
    double sum = 0, expected = 0;
    for (const json& e : phase(file, "X")) sum += e["dur"].get<double>();
    for (const Event& e : t.events) expected += (e.end_s - e.begin_s) * 1e6;
    EXPECT_DOUBLE_EQ(sum, expected);
  }
}

TEST(TraceChrome, ob109_times_are_relative_numbers) {
  // Microseconds since 1970; and the same in nanoseconds, which no double holds.
  const std::int64_t origin = 1672924880617000 * std::int64_t{1000};
  const std::int64_t second = 1672924881307000000;
  Timeline t;
  for (const std::int64_t ns : {origin, second}) {
    const double begin = seconds_since(origin, ns);
    t.events.push_back(event("e", begin, begin + 1e-9));
  }
  t.events[0].flow = t.events[1].flow = std::int64_t{1} << 60;
  t.events[0].flow_start = true;
  const json file = json::parse(written(t));
  const auto slices = phase(file, "X");
  EXPECT_TRUE(slices[0]["ts"].is_number() && slices[0]["dur"].is_number());
  EXPECT_EQ(slices[0]["ts"].get<double>(), 0);
  EXPECT_EQ(slices[1]["ts"].get<double>(), 690000);
  EXPECT_EQ(slices[1]["dur"].get<double>(), 0.001);
  for (const char* ph : {"s", "f"}) {
    ASSERT_EQ(phase(file, ph).size(), 1u);
    EXPECT_LT(phase(file, ph)[0]["id"].get<std::int64_t>(), std::int64_t{1} << 53);
  }
}

TEST(TraceChrome, ob110_strange_names_come_back) {
  const std::vector<std::string> names{"a\"b", "c\\d", "a\ttab", "a\nnewline", "\xc3\xa9"};
  Timeline t;
  for (const auto& name : names) {
    t.events.push_back(event(name, 1.0 * t.events.size(), 1.0 * t.events.size() + 1));
    t.events.back().detail = name;
  }
  t.title = t.events[0].name;
  t.ranks = {names[1]};
  t.queues = {{names[2]}};
  const json file = json::parse(written(t));
  const auto slices = phase(file, "X");
  ASSERT_EQ(slices.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(slices[i]["name"], names[i]);
    EXPECT_EQ(slices[i]["args"]["detail"], names[i]);
  }
  EXPECT_EQ(phase(file, "M")[0]["args"]["name"], names[1]);
  t.events[0].name = "\xff broken";
  EXPECT_TRUE(json::accept(written(t))) << "invalid UTF-8 must not break the file";
}

TEST(TraceChrome, ob111_zero_and_one_event_are_strict_json) {
  EXPECT_EQ(json::parse(written({})), json::array());
  Timeline t;
  t.events = {event("a", 7, 8)};
  EXPECT_EQ(phase(json::parse(written(t)), "X").size(), 1u);
}

TEST(TraceChrome, ob111_file_of_a_killed_writer_is_repaired) {
  Timeline t;
  for (int i = 0; i < 6; ++i) t.events.push_back(event("a,\n]\"{" + std::to_string(i), i, i + 1));
  const std::string whole = written(t);
  std::size_t after_three = 0;
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    const json file = json::parse(repaired(whole.substr(0, cut)));
    const auto slices = phase(file, "X");
    for (std::size_t i = 0; i < slices.size(); ++i) {
      ASSERT_EQ(slices[i]["name"], t.events[i].name) << "cut at " << cut;
    }
    // What is wholly in the prefix is kept: count the ends of slices by hand.
    std::size_t complete = 0;
    for (std::size_t at = whole.find("\"args\":{}}"); at != std::string::npos && at + 10 <= cut;
         at = whole.find("\"args\":{}}", at + 1)) {
      ++complete;
    }
    ASSERT_EQ(slices.size(), complete) << "cut at " << cut;
    after_three += complete == 3;
  }
  EXPECT_GT(after_three, 10u) << "some of the cuts leave three events";
  EXPECT_EQ(json::parse(repaired(whole)), json::parse(whole));
}

TEST(TraceChrome, ob112_parent_comes_before_its_child) {
  Timeline t;
  auto add = [&](const char* name, double ts, double dur) {
    t.events.push_back(event(name, ts * 1e-6, (ts + dur) * 1e-6));
  };
  add("child", 38538.161, 1222.31);
  add("twin of parent, shorter", 37747.046, 100);
  add("parent", 37747.046, 2490.403);
  const json file = json::parse(written(t));
  std::map<std::string, int> depth;
  EXPECT_EQ(crossings(file, &depth), 0);
  EXPECT_EQ(depth["parent"], 0);
  EXPECT_EQ(depth["child"], 1);
  EXPECT_EQ(depth["twin of parent, shorter"], 1);
}

TEST(TraceChrome, arrows_join_both_sides_inside_their_slices) {
  Timeline t;
  auto message = [&](double send, double receive, int flow) {
    t.events.push_back(event("send", send, send + 1, 0, 1));
    t.events.back().flow = flow;
    t.events.back().flow_start = true;
    t.events.push_back(event("recv", receive, receive + 3, 1, 1));
    t.events.back().flow = flow;
  };
  message(1, 0, 7);    // posted before the send begins
  message(10, 11, 9);  // after it
  t.events.push_back(event("lonely", 20, 21));
  t.events.back().flow = 11;
  const json file = json::parse(written(t));
  const auto starts = phase(file, "s"), ends = phase(file, "f");
  ASSERT_EQ(starts.size(), 2u);
  ASSERT_EQ(ends.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(starts[i]["id"], ends[i]["id"]);
    EXPECT_EQ(starts[i]["pid"], 0);
    EXPECT_EQ(ends[i]["pid"], 1);
    EXPECT_EQ(ends[i]["bp"], "e");
    EXPECT_GE(ends[i]["ts"], starts[i]["ts"]);
  }
  EXPECT_EQ(ends[0]["ts"], 1e6);
  EXPECT_EQ(ends[1]["ts"], 11e6);
}

TEST(TraceChrome, senseless_event_is_refused) {
  Timeline t;
  t.events = {event("a", 2, 1)};
  EXPECT_THROW(written(t), Error);
  t.events = {event("a", 0, std::nan(""))};
  EXPECT_THROW(written(t), Error);
}

TEST(TraceChrome, file_appears_whole_or_not_at_all) {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("tessera_trace_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  Timeline t;
  t.events = {event("a", 0, 1)};
  const std::string path = folder / "trace.json";
  write_chrome_file(t, path);
  std::ifstream in(path);
  EXPECT_EQ(phase(json::parse(in), "X").size(), 1u);
  t.events = {event("a", 2, 1)};
  EXPECT_THROW(write_chrome_file(t, folder / "bad.json"), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "only trace.json is left";
  try {
    write_chrome_file(t, folder / "none" / "trace.json");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::io);
    EXPECT_NE(e.message().find("none"), std::string::npos);
  }
  fs::remove_all(folder);
}

TEST(TraceChrome, full_disk_is_an_io_error) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  Timeline t;
  t.events = {event("a", 0, 1)};
  // The unfinished name is a link to the device that is always full.
  const auto folder = std::filesystem::temp_directory_path();
  const std::string path = folder / ("tessera_full_" + std::to_string(::getpid()));
  std::filesystem::create_symlink("/dev/full", path + ".part");
  try {
    write_chrome_file(t, path);
    ADD_FAILURE() << "written to a full disk";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::io);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::is_symlink(path + ".part"));
}

}  // namespace
}  // namespace tessera::trace

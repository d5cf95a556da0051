// SPDX-License-Identifier: Apache-2.0
// Analyses of timelines; cases OB-107 and OB-113 to OB-115 of the field reports.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.hpp"
#include "trace/bandwidth.hpp"
#include "trace/clock.hpp"
#include "trace/intervals.hpp"
#include "trace/overlap.hpp"
#include "trace/straggler.hpp"

namespace tessera::trace {
namespace {

Event event(Category category, double begin_s, double end_s, int queue) {
  Event e;
  e.category = category;
  e.begin_s = begin_s;
  e.end_s = end_s;
  e.queue = queue;
  return e;
}

TEST(TraceBandwidth, ob107_bus_and_algorithm_bandwidth) {
  const double bytes = 1e9, seconds = 10e-3;
  EXPECT_DOUBLE_EQ(algorithm_gb_s(bytes, seconds), 100);
  EXPECT_DOUBLE_EQ(bus_gb_s(Collective::all_reduce, bytes, seconds, 8), 175);
  for (auto kind : {Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all}) {
    EXPECT_DOUBLE_EQ(bus_gb_s(kind, bytes, seconds, 8), 87.5);
    EXPECT_EQ(bus_gb_s(kind, bytes, seconds, 1), 0);
  }
  EXPECT_DOUBLE_EQ(bus_gb_s(Collective::send_recv, bytes, seconds, 2), 100);
  EXPECT_EQ(bus_gb_s(Collective::all_reduce, bytes, seconds, 1), 0);
  EXPECT_EQ(algorithm_gb_s(bytes, 0), 0);
}

TEST(TraceOverlap, ob113_streams_are_united_and_waits_left_out) {
  Timeline t;
  t.events = {event(Category::comm, 0, 10, 1), event(Category::comm, 5, 15, 2),
              event(Category::compute, 8, 12, 0), event(Category::wait, 0, 15, 0)};
  const auto result = overlap_of(t);
  ASSERT_EQ(result.size(), 1u);
  EXPECT_DOUBLE_EQ(result[0].comm_s, 15);
  EXPECT_DOUBLE_EQ(result[0].compute_s, 4);
  EXPECT_DOUBLE_EQ(result[0].overlapped_s, 4);
  EXPECT_DOUBLE_EQ(result[0].exposed_s, 11);
  EXPECT_NEAR(result[0].share, 4.0 / 15, 1e-12);
}

TEST(TraceOverlap, rank_without_communication_has_share_zero) {
  Timeline t;
  t.ranks = {"a", "b"};
  t.events = {event(Category::compute, 0, 1, 0)};
  const auto result = overlap_of(t);
  ASSERT_EQ(result.size(), 2u);
  EXPECT_EQ(result[0].share, 0);
  EXPECT_EQ(result[1].compute_s, 0);
}

/// Unions and intersections against counting unit cells.
TEST(TraceIntervals, agree_with_counting_cells) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<Interval> sets[2];
    std::vector<bool> cells[2]{std::vector<bool>(64), std::vector<bool>(64)};
    for (int s = 0; s < 2; ++s) {
      for (int i = 0; i < 8; ++i) {
        const int begin = static_cast<int>(random() % 56), size = static_cast<int>(random() % 8);
        sets[s].push_back({double(begin), double(begin + size)});
        for (int c = begin; c < begin + size; ++c) cells[s][c] = true;
      }
    }
    const auto a = united(sets[0]), b = united(sets[1]);
    EXPECT_EQ(length(a), std::count(cells[0].begin(), cells[0].end(), true));
    int both = 0;
    for (int c = 0; c < 64; ++c) both += cells[0][c] && cells[1][c];
    EXPECT_EQ(length(common(a, b)), both);
  }
}

/// Ping-pongs with a clock that is ahead by `offset`; one way takes longer by chance.
std::vector<ClockSample> ping_pong(double offset, double base, std::mt19937& random) {
  std::exponential_distribution<double> noise(1 / 20e-6);
  std::vector<ClockSample> samples;
  for (int i = 0; i < 50; ++i) {
    const double there = 2e-6 + noise(random), back = 2e-6 + noise(random);
    samples.push_back({base, base + there + offset, base + there + back});
    base += 1e-3;
  }
  return samples;
}

TEST(TraceClock, ob114_ranks_are_aligned_within_the_stated_uncertainty) {
  std::mt19937 random(6);
  const double raw = 11.56, skew = 1.60e-3;
  for (int round = 0; round < 50; ++round) {
    const ClockOffset clock = estimate_offset(ping_pong(raw, 100, random));
    EXPECT_LE(std::abs(clock.offset_s - raw), clock.uncertainty_s);
    EXPECT_LT(clock.uncertainty_s, 50e-6);
    // Both leave a barrier at 200 s; rank 1 starts its step 1.60 ms after rank 0.
    RankPart parts[2];
    for (int r = 0; r < 2; ++r) {
      const double base = r * raw;
      parts[r].rank = r;
      parts[r].name = "rank";
      parts[r].events = {event(Category::wait, 199 + base, 200 + base, 0),
                         event(Category::compute, 200.1 + base + r * skew, 201 + base, 0)};
      parts[r].clock = r == 0 ? ClockOffset{} : clock;
    }
    const Timeline t = merge("run", {parts[1], parts[0]});
    ASSERT_EQ(t.events.size(), 4u);
    EXPECT_NEAR(t.events[2].end_s, t.events[0].end_s, clock.uncertainty_s + 1e-12);
    EXPECT_NEAR(t.events[3].begin_s - t.events[1].begin_s, skew, clock.uncertainty_s + 1e-12);
    EXPECT_EQ(t.events[3].rank, 1);
  }
}

TEST(TraceClock, ob114_uncalibrated_or_colliding_ranks_are_refused) {
  RankPart a, b;
  a.clock = ClockOffset{};
  b.rank = 1;
  EXPECT_THROW(merge("", {a, b}), Error) << "rank 1 has no offset";
  b.clock = ClockOffset{};
  EXPECT_EQ(merge("", {a, b}).ranks.size(), 2u);
  b.rank = 0;
  EXPECT_THROW(merge("", {a, b}), Error) << "two parts of rank 0";
  EXPECT_THROW(estimate_offset({}), Error);
}

TEST(TraceStraggler, ob115_slow_rank_is_named) {
  const StragglerReport one = find_straggler({{0.093, 0.293, 0.093, 0.093}});
  EXPECT_EQ(one.rank, 1);
  const std::vector<double> waits{0.2, 0, 0.2, 0.2};
  for (int r = 0; r < 4; ++r) EXPECT_NEAR(one.waits_s[r], waits[r], 1e-12);
  EXPECT_NEAR(one.step_s, 0.293, 1e-12);
  EXPECT_NEAR(one.step_without_s, 0.093, 1e-12);
  EXPECT_NEAR(one.ratio, 3.15, 0.005);
}

TEST(TraceStraggler, ob115_rotating_slow_rank_blames_nobody) {
  std::vector<std::vector<double>> steps(8, std::vector<double>(4, 0.093));
  for (int s = 0; s < 8; ++s) steps[s][s % 4] = 0.293;
  const StragglerReport report = find_straggler(steps);
  EXPECT_EQ(report.rank, -1);
  EXPECT_DOUBLE_EQ(report.slowest_share, 0.25);
}

TEST(TraceStraggler, balanced_or_single_rank_blames_nobody) {
  EXPECT_EQ(find_straggler({{1, 1.001, 1}}).rank, -1);
  EXPECT_EQ(find_straggler({{1}}).rank, -1);
  EXPECT_EQ(find_straggler({{0, 0}}).rank, -1);
  EXPECT_EQ(find_straggler({}).rank, -1);
  EXPECT_THROW(find_straggler({{1, 2}, {1}}), Error);
}

}  // namespace
}  // namespace tessera::trace

// SPDX-License-Identifier: Apache-2.0
// Overhead and rate from measured times: exact lines, noise, sizes that tell nothing.
#include <gtest/gtest.h>

#include <vector>

#include "base/error.hpp"
#include "drivers/comm/fit.hpp"

namespace tessera::drivers {
namespace {

std::vector<Sample> samples_of(const Line& line, const std::vector<double>& works) {
  std::vector<Sample> samples;
  for (const double w : works) samples.push_back({w, line.seconds(w)});
  return samples;
}

TEST(comm_fit, an_exact_line_is_found_over_many_orders_of_magnitude) {
  for (const Line line : {Line{8e-6, 600e12}, Line{3e-5, 9e10}, Line{12e-6, 450e9}}) {
    for (const std::vector<double>& works :
         {std::vector{4.0, 65536.0, 1e6, 1.6e7}, {4e9, 1.6e10, 7e10, 1.1e12}, {1e8, 1e10}}) {
      if (works.back() / line.rate < 1e-3 * line.overhead_s) continue;  // only the overhead shows
      const Line found = fit_line(samples_of(line, works));
      EXPECT_NEAR(found.overhead_s / line.overhead_s, 1, 1e-3) << line.rate << " " << works[0];
      EXPECT_NEAR(found.rate / line.rate, 1, 1e-3) << line.rate << " " << works[0];
      EXPECT_LT(worst_error(found, samples_of(line, works)), 1e-6);
    }
  }
}

TEST(comm_fit, every_size_counts_alike) {
  // Off by 2 % in turn: no size may end much further away, the smallest not more than the largest.
  std::vector<Sample> samples = samples_of({10e-6, 500e12}, {1e9, 4e9, 1.6e10, 6.4e10, 2.6e11});
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i].seconds *= i % 2 == 0 ? 1.02 : 0.98;
  EXPECT_LT(worst_error(fit_line(samples), samples), 0.04);
  EXPECT_GT(worst_error(fit_line(samples), samples), 0.01);
}

TEST(comm_fit, a_small_tile_at_a_better_rate_has_no_overhead) {
  const std::vector<Sample> samples{{1e9, 0.9e-3}, {1e10, 1e-2}};
  const Line line = fit_line(samples);
  EXPECT_EQ(line.overhead_s, 0);
  EXPECT_GT(line.rate, 1e12);
  EXPECT_LT(line.rate, 1e9 / 0.9e-3);
}

TEST(comm_fit, one_size_or_falling_times_give_the_plain_rate) {
  EXPECT_DOUBLE_EQ(fit_line(std::vector<Sample>{{2e9, 1e-3}}).rate, 2e12);
  EXPECT_EQ(fit_line(std::vector<Sample>{{2e9, 1e-3}}).overhead_s, 0);
  const Line same = fit_line(std::vector<Sample>{{1e9, 1e-3}, {1e9, 1e-3}});
  EXPECT_EQ(same.overhead_s, 0);
  EXPECT_NEAR(same.rate, 1e12, 1);
  const Line falling = fit_line(std::vector<Sample>{{1e9, 2e-3}, {2e9, 1e-3}});
  EXPECT_EQ(falling.overhead_s, 0);
  EXPECT_GT(falling.rate, 0);
}

TEST(comm_fit, nothing_measured_is_an_error) {
  EXPECT_THROW(fit_line({}), Error);
  EXPECT_THROW(fit_line(std::vector<Sample>{{1e9, 0}}), Error);
  EXPECT_THROW(fit_line(std::vector<Sample>{{0, 1e-3}}), Error);
}

}  // namespace
}  // namespace tessera::drivers

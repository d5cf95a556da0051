// SPDX-License-Identifier: Apache-2.0
// The one form that the machine model knows: time = overhead + work / rate, fitted to measured
// times of several sizes. Work is flops of a tile or bytes of a message.
#pragma once

#include <span>

namespace tessera::drivers {

struct Sample {
  double work = 0, seconds = 0;
};

struct Line {
  double overhead_s = 0;
  double rate = 0;  ///< work per second
  double seconds(double work) const { return overhead_s + work / rate; }
};

/// Least squares of the relative errors, so that small sizes count as much as large ones. Without a
/// rising line through the samples, or when small ones run at a better rate than large ones, the
/// overhead is 0 and the rate is that of the samples. Error(numerical) unless there is a sample and
/// all works and times are above 0.
Line fit_line(std::span<const Sample> samples);

/// The largest relative error of the line at the samples, |predicted / measured - 1|.
double worst_error(const Line& line, std::span<const Sample> samples);

}  // namespace tessera::drivers

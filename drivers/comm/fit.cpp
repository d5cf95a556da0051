// SPDX-License-Identifier: Apache-2.0
#include "drivers/comm/fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace tessera::drivers {

Line fit_line(std::span<const Sample> samples) {
  // Minimises the sum of (overhead x + y / rate - 1)^2 with x = 1 / time, y = work / time.
  double xx = 0, xy = 0, yy = 0, sum_x = 0, sum_y = 0;
  for (const Sample& s : samples) {
    if (!(s.seconds > 0) || !(s.work > 0)) {
      throw Error(Exit::numerical, fmt::format("no rate from {} in {} s", s.work, s.seconds),
                  "both must be above 0");
    }
    const double x = 1 / s.seconds, y = s.work / s.seconds;
    xx += x * x;
    xy += x * y;
    yy += y * y;
    sum_x += x;
    sum_y += y;
  }
  if (samples.empty()) throw Error(Exit::numerical, "no rate without a measurement");
  const double determinant = xx * yy - xy * xy;
  if (determinant > 1e-12 * xx * yy) {
    const double overhead = (sum_x * yy - sum_y * xy) / determinant;
    const double slope = (sum_y * xx - sum_x * xy) / determinant;
    if (overhead > 0 && slope > 0) return {overhead, 1 / slope};
  }
  return {0, yy / sum_y};
}

double worst_error(const Line& line, std::span<const Sample> samples) {
  double worst = 0;
  for (const Sample& s : samples)
    worst = std::max(worst, std::abs(line.seconds(s.work) / s.seconds - 1));
  return worst;
}

}  // namespace tessera::drivers

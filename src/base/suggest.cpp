// SPDX-License-Identifier: Apache-2.0
#include "base/suggest.hpp"

#include <algorithm>
#include <vector>

namespace tessera {

int edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<int> d((a.size() + 1) * width);
  for (std::size_t i = 0; i <= a.size(); ++i) d[i * width] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) d[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replace = d[(i - 1) * width + j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      int best = std::min({d[(i - 1) * width + j] + 1, d[i * width + j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        best = std::min(best, d[(i - 2) * width + j - 2] + 1);
      d[i * width + j] = best;
    }
  }
  return d.back();
}

std::string nearest(std::string_view name, std::span<const std::string> candidates) {
  const std::string_view last_of_name = name.substr(name.rfind('.') + 1);
  std::string best;
  int best_distance = std::max<int>(2, static_cast<int>(name.size()) / 3) + 1;
  for (const std::string& candidate : candidates) {
    int distance = edit_distance(name, candidate);
    const std::string_view last = std::string_view(candidate).substr(candidate.rfind('.') + 1);
    if (candidate != last && last == last_of_name) distance = std::min(distance, 2);
    // A short name is not "near" to one that shares nothing with it.
    if (distance >= static_cast<int>(std::max(name.size(), candidate.size()))) continue;
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace tessera

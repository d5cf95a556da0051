// SPDX-License-Identifier: Apache-2.0
// Masks that tiles are timed under: full, causal, and three with gaps (window, documents, slices).
// They are made here only; the bench hands them on in its JSON file to the scripts of its peers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "ops/call.hpp"

namespace tessera::perf {

inline constexpr std::int64_t open_end = ops::Band::unbounded;

/// Causal documents with the lengths of real texts: words of those in /usr/share/common-licenses of
/// Debian 12 (those that inputs/data/make_attention.py takes by default), over and over, the last
/// one cut off.
inline std::vector<ops::Band> documents_of(std::int64_t n) {
  constexpr std::array<std::int64_t, 14> words{1581, 970,  225,  1066, 3689, 3278, 5644,
                                               2063, 2968, 1234, 4183, 4372, 3673, 2435};
  std::vector<ops::Band> bands;
  for (std::int64_t at = 0; at < n; at = bands.back().q1) {
    const std::int64_t end = std::min(at + words[bands.size() % words.size()], n);
    bands.push_back({at, end, at, end, -open_end, 0});
  }
  return bands;
}

/// Random slices (attention brief 6.3): query ranges between 63 random cuts, each with half of the
/// keys from a random place on and a random type, whose bit 0 is causal (aligned at the bottom
/// right) and bit 1 inverse causal (at the top left). A little less than half of the pairs is
/// visible. The seed is fixed.
inline std::vector<ops::Band> slices_of(std::int64_t n) {
  std::int64_t state = 1;
  const auto random = [&](std::int64_t below) {
    state = (1103515245 * state + 12345) % (std::int64_t{1} << 31);
    return (state >> 8) % below;
  };
  std::set<std::int64_t> cuts;
  while (cuts.size() < 63) cuts.insert(1 + random(n - 1));
  cuts.insert(n);
  std::vector<ops::Band> bands;
  std::int64_t begin = 0;
  for (const std::int64_t end : cuts) {
    const std::int64_t k0 = random(n / 2 + 1), k1 = k0 + n / 2, type = random(4);
    bands.push_back(
        {begin, end, k0, k1, type & 2 ? k0 - begin : -open_end, type & 1 ? k1 - end : open_end});
    begin = end;
  }
  return bands;
}

/// kind: full, causal, window (causal, 4096 keys), documents or slices; n >= 64 tokens.
inline std::vector<ops::Band> mask_of(const std::string& kind, std::int64_t n) {
  if (kind == "full") return {{0, n, 0, n, -open_end, open_end}};
  if (kind == "causal") return {{0, n, 0, n, -open_end, 0}};
  if (kind == "window") return {{0, n, 0, n, -4095, 0}};
  return kind == "documents" ? documents_of(n) : slices_of(n);
}

/// (query, key) pairs that the mask lets see each other.
inline double visible_pairs(const std::vector<ops::Band>& mask) {
  double pairs = 0;
  for (const ops::Band& b : mask) {
    for (std::int64_t q = b.q0; q < b.q1; ++q) pairs += static_cast<double>(b.keys_of(q).size());
  }
  return pairs;
}

}  // namespace tessera::perf

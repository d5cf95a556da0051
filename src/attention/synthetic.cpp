// SPDX-License-Identifier: Apache-2.0
#include "attention/synthetic.hpp"

#include <Random123/philox.h>

#include <array>
#include <cmath>
#include <numbers>
#include <string_view>
#include <thread>
#include <vector>

namespace tessera::attention {

namespace {

/// Two standard normal numbers for one counter (Box-Muller over 2 x 32 random bits each).
std::array<double, 2> normal_pair(std::uint64_t seed, std::uint32_t purpose, std::uint64_t index) {
  using Generator = r123::Philox4x32;
  const Generator::ctr_type counter = {
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), purpose, 0}};
  const Generator::key_type key = {
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}};
  const auto bits = Generator()(counter, key);
  const double u1 = (bits[0] + 0.5) * 0x1p-32, u2 = (bits[1] + 0.5) * 0x1p-32;
  const double radius = std::sqrt(-2 * std::log(u1)), angle = 2 * std::numbers::pi * u2;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

std::uint32_t purpose_of(std::string_view name) {
  constexpr std::string_view names[] = {"q", "k", "v", "do", "sink"};
  for (std::uint32_t i = 0; i < 5; ++i)
    if (names[i] == name) return i;
  throw std::logic_error("synthetic input of an unknown name");
}

/// One row [heads, dim] of a tensor; element e of the whole tensor is half of the pair e / 2.
void fill_row(const TensorRef& out, std::int64_t i, std::int64_t global, std::uint64_t seed,
              std::uint32_t purpose) {
  const std::int64_t width = out.shape[1] * out.shape[2], first = global * width;
  std::array<double, 2> pair{};
  std::int64_t have = -1;
  for (std::int64_t e = 0; e < width; ++e) {
    if (global >= 0 && (first + e) / 2 != have) {
      have = (first + e) / 2;
      pair = normal_pair(seed, purpose, static_cast<std::uint64_t>(have));
    }
    out.set_value(i, e / out.shape[2], e % out.shape[2],
                  global < 0 ? 0 : pair[static_cast<std::size_t>((first + e) % 2)]);
  }
}

}  // namespace

Fill synthetic(std::uint64_t seed, int num_threads) {
  return [seed, num_threads](const std::string& name, const Rows& rows, const TensorRef& out) {
    const std::uint32_t purpose = purpose_of(name);
    std::vector<std::int64_t> global = expand(rows);
    if (rows.empty())
      for (std::int64_t i = 0; i < out.shape[0]; ++i) global.push_back(i);
    const auto part = [&](int t) {
      for (std::int64_t i = t; i < out.shape[0]; i += num_threads)
        fill_row(out, i, global[static_cast<std::size_t>(i)], seed, purpose);
    };
    std::vector<std::jthread> others;
    for (int t = 1; t < num_threads; ++t) others.emplace_back(part, t);
    part(0);
  };
}

}  // namespace tessera::attention

// SPDX-License-Identifier: Apache-2.0
#include "attention/synthetic.hpp"

#include <Random123/philox.h>

#include <cmath>
#include <numbers>
#include <string_view>

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

double value(std::uint64_t seed, std::uint32_t purpose, std::int64_t element) {
  return normal_pair(
      seed, purpose,
      static_cast<std::uint64_t>(element / 2))[static_cast<std::size_t>(element % 2)];
}

void put(const TensorRef& t, std::int64_t i, std::int64_t j, std::int64_t k, double x) {
  if (t.dtype == DType::f64)
    t.at<double>(i, j, k) = x;
  else if (t.dtype == DType::f32)
    t.at<float>(i, j, k) = static_cast<float>(x);
  else
    t.at<BFloat16>(i, j, k) = BFloat16(static_cast<float>(x));
}

std::uint32_t purpose_of(std::string_view name) {
  constexpr std::string_view names[] = {"q", "k", "v", "do", "sink"};
  for (std::uint32_t i = 0; i < 5; ++i)
    if (names[i] == name) return i;
  throw std::logic_error("synthetic input of an unknown name");
}

}  // namespace

Fill synthetic(std::uint64_t seed) {
  return [seed](const std::string& name, const Rows& rows, const TensorRef& out) {
    const std::uint32_t purpose = purpose_of(name);
    std::vector<std::int64_t> global = expand(rows);
    if (rows.empty())
      for (std::int64_t i = 0; i < out.shape[0]; ++i) global.push_back(i);
    for (std::int64_t i = 0; i < out.shape[0]; ++i)
      for (std::int64_t j = 0; j < out.shape[1]; ++j)
        for (std::int64_t k = 0; k < out.shape[2]; ++k) {
          const std::int64_t g = global[static_cast<std::size_t>(i)];
          put(out, i, j, k,
              g < 0 ? 0 : value(seed, purpose, (g * out.shape[1] + j) * out.shape[2] + k));
        }
  };
}

}  // namespace tessera::attention

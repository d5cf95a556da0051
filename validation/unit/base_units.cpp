// SPDX-License-Identifier: Apache-2.0
#include "base/units.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"

namespace tessera {
namespace {

TEST(base, size_binary_prefixes) {
  EXPECT_EQ(units::parse_size("4096"), 4096);
  EXPECT_EQ(units::parse_size("8K"), 8192);
  EXPECT_EQ(units::parse_size("8k"), 8192);
  EXPECT_EQ(units::parse_size("128M"), std::int64_t{128} << 20);
  EXPECT_EQ(units::parse_size("1G"), std::int64_t{1} << 30);
  EXPECT_EQ(units::parse_size("2TiB"), std::int64_t{2} << 40);
  EXPECT_EQ(units::parse_size("0"), 0);
}

TEST(base, size_refuses_what_is_none) {
  for (const char* text : {"", "K", "8 K", "1.5G", "-1", "8KB", "8Q", "8KK", "0x10",
                           "9223372036854775807K", "99999999999999999999"})
    EXPECT_FALSE(units::parse_size(text)) << text;
}

TEST(base, integer_and_real_whole_text_only) {
  EXPECT_EQ(units::parse_integer("-12"), -12);
  EXPECT_EQ(units::parse_integer("+12"), 12);
  EXPECT_EQ(units::parse_real("1e-3"), 1e-3);
  for (const char* text : {"", "1.5", "1x", "+-1", "1 "})
    EXPECT_FALSE(units::parse_integer(text)) << text;
  for (const char* text : {"", "1x", "nan", "inf", "1e999"})
    EXPECT_FALSE(units::parse_real(text)) << text;
}

TEST(base, duration_clock_and_suffixes) {
  EXPECT_EQ(units::parse_duration("01:02:03"), 3723.0);
  EXPECT_EQ(units::parse_duration("100:00:00"), 360000.0);
  EXPECT_EQ(units::parse_duration("90"), 90.0);
  EXPECT_EQ(units::parse_duration("90s"), 90.0);
  EXPECT_EQ(units::parse_duration("250ms"), 0.25);
  EXPECT_DOUBLE_EQ(*units::parse_duration("1.5us"), 1.5e-6);
  EXPECT_DOUBLE_EQ(*units::parse_duration("20ns"), 2e-8);
}

TEST(base, duration_refuses_what_is_none) {
  for (const char* text : {"", "10:00", "1:60:00", "1:00:60", "1:0:00", "1:00:00:00", "-1", "5min",
                           "1:-1:00", "1:00:00s", "inf"})
    EXPECT_FALSE(units::parse_duration(text)) << text;
}

TEST(base, format_units) {
  EXPECT_EQ(units::format_bytes(512), "512 B");
  EXPECT_EQ(units::format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(units::format_bytes(3.0 * (1 << 30)), "3.00 GiB");
  EXPECT_EQ(units::format_seconds(0.001234), "1.234 ms");
  EXPECT_EQ(units::format_seconds(3723), "1:02:03");
  EXPECT_EQ(units::format_seconds(2e-7), "200.0 ns");
  EXPECT_EQ(units::format_rate(12.3e9, "B/s"), "12.3 GB/s");
  EXPECT_EQ(units::format_rate(999, "B/s"), "999 B/s");
}

TEST(base, bf16_rounds_to_nearest_even) {
  EXPECT_EQ(BFloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(BFloat16(1.00390625f).bits, 0x3f80);  // 1 + 2^-8: tie, to even
  EXPECT_EQ(BFloat16(1.01171875f).bits, 0x3f82);  // 1 + 3 * 2^-8: tie, to even
  EXPECT_EQ(BFloat16(1.0039064f).bits, 0x3f81);   // above the tie
  EXPECT_NE(BFloat16(std::numeric_limits<float>::quiet_NaN()).bits & 0x7f, 0);
}

TEST(base, f16_rounds_to_nearest_even) {
  EXPECT_EQ(Float16(1.0f).bits, 0x3c00);
  EXPECT_EQ(Float16(-2.5f).bits, 0xc100);
  EXPECT_EQ(Float16(1.00048828125f).bits, 0x3c00);  // 1 + 2^-11: tie, to even
  EXPECT_EQ(Float16(1.00146484375f).bits, 0x3c02);  // 1 + 3 * 2^-11: tie, to even
  EXPECT_EQ(Float16(1.0004884f).bits, 0x3c01);      // above the tie
}

TEST(base, f16_ends_in_infinity_subnormals_and_zero) {
  EXPECT_EQ(Float16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(Float16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(Float16(65520.0f).bits, 0x7c00);  // tie with 2^16, which is no number of it
  EXPECT_EQ(Float16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(Float16(0x1p-14f).bits, 0x0400);  // the smallest normal number
  EXPECT_EQ(Float16(0x1p-24f).bits, 0x0001);  // the smallest number
  EXPECT_EQ(Float16(0x1.8p-24f).bits, 0x0002);
  EXPECT_EQ(Float16(0x1p-25f).bits, 0x0000);  // tie, to even
  EXPECT_EQ(Float16(-0.0f).bits, 0x8000);
  const auto nan = Float16(std::numeric_limits<float>::quiet_NaN()).bits;
  EXPECT_GT(nan & 0x7fff, 0x7c00);
}

/// Every upper half of an f32 with lower halves that lie on, just below and just above what
/// rounding to f16 turns at, and random ones.
TEST(base, f16_has_the_bits_of_the_compilers_own_type) {
  std::mt19937 rng(1);
  std::int64_t numbers = 0;
  for (std::uint32_t high = 0; high < 1u << 16; ++high) {
    std::vector<std::uint32_t> lows{0,      1,      0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001,
                                    0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xf001, 0xffff};
    for (int i = 0; i < 5; ++i) lows.push_back(rng() & 0xffffu);
    for (const std::uint32_t low : lows) {
      const auto x = std::bit_cast<float>(high << 16 | low);
      const std::uint16_t ours = Float16(x).bits;
      const auto own = static_cast<_Float16>(x);
      if (std::isnan(x)) {
        ASSERT_GT(ours & 0x7fff, 0x7c00) << high << " " << low;
      } else {
        ASSERT_EQ(ours, std::bit_cast<std::uint16_t>(own)) << high << " " << low << ": " << x;
      }
      ++numbers;
    }
    Float16 back;
    back.bits = static_cast<std::uint16_t>(high);
    const auto wide = static_cast<float>(back),
               own = static_cast<float>(std::bit_cast<_Float16>(back.bits));
    ASSERT_TRUE(std::isnan(wide)
                    ? std::isnan(own)
                    : std::bit_cast<std::uint32_t>(wide) == std::bit_cast<std::uint32_t>(own))
        << high;
  }
  std::printf("%lld numbers to f16, 65536 back\n", static_cast<long long>(numbers));
}

TEST(base, f16_survives_the_way_to_f32_and_back) {
  for (int bits = 0; bits < 1 << 16; ++bits) {
    Float16 x;
    x.bits = static_cast<std::uint16_t>(bits);
    const int magnitude = bits & 0x7fff, exponent = magnitude >> 10, fraction = magnitude & 0x3ff;
    const auto value = static_cast<float>(x);
    if (exponent == 31 && fraction > 0) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    const double right = exponent == 31  ? std::numeric_limits<double>::infinity()
                         : exponent == 0 ? std::ldexp(fraction, -24)
                                         : std::ldexp(1024 + fraction, exponent - 25);
    EXPECT_EQ(value, bits < 1 << 15 ? right : -right) << bits;
    EXPECT_EQ(Float16(value).bits, bits);
  }
}

TEST(base, element_types_have_names_and_sizes) {
  for (const DType t : all_dtypes) EXPECT_EQ(dtype_named(name_of(t)), t);
  EXPECT_EQ(dtype_named("f16"), DType::f16);
  EXPECT_EQ(dtype_named("fp16"), std::nullopt);
  EXPECT_EQ(size_of(DType::f16), 2);
  EXPECT_EQ(accumulate_type(DType::f16), DType::f32);
  EXPECT_EQ(element_cast<Float16>(BFloat16(3.0f)).bits, 0x4200);
  EXPECT_EQ(element_cast<double>(Float16(0.5f)), 0.5);
}

TEST(base, error_text_holds_place_and_hint) {
  const Error e(Exit::io, "message", "hint", "place");
  EXPECT_STREQ(e.what(), "message\n  at: place\n  try: hint");
  EXPECT_EQ(e.code(), Exit::io);
  EXPECT_STREQ(Error(Exit::usage, "only").what(), "only");
}

}  // namespace
}  // namespace tessera

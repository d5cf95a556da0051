// SPDX-License-Identifier: Apache-2.0
#include "base/units.hpp"

#include <gtest/gtest.h>

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

TEST(base, error_text_holds_place_and_hint) {
  const Error e(Exit::io, "message", "hint", "place");
  EXPECT_STREQ(e.what(), "message\n  at: place\n  try: hint");
  EXPECT_EQ(e.code(), Exit::io);
  EXPECT_STREQ(Error(Exit::usage, "only").what(), "only");
}

}  // namespace
}  // namespace tessera

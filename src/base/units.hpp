// SPDX-License-Identifier: Apache-2.0
// Text to numbers and back: sizes (binary prefixes), durations, rates. Parsing returns nothing when
// the text does not fit, so that the caller can name the key or option in its message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::units {

/// "4096", "8K", "128M", "1G", "2T": binary (K = 1024), upper or lower case, also "KiB" and so on.
/// Nothing for fractions, negative numbers, other suffixes or values above 2^63 - 1.
std::optional<std::int64_t> parse_size(std::string_view text);

/// A whole number with an optional sign and nothing after it.
std::optional<std::int64_t> parse_integer(std::string_view text);

/// A finite decimal number with nothing after it.
std::optional<double> parse_real(std::string_view text);

/// Seconds: "90", "1.5", "90s", "250ms", "1.5us", "20ns", or "hh:mm:ss". Never negative.
std::optional<double> parse_duration(std::string_view text);

/// "1.50 GiB", "512 B": binary prefixes.
std::string format_bytes(double bytes);
/// "1.234 ms", "2.50 s", "1:02:03".
std::string format_seconds(double seconds);
/// Decimal prefixes: format_rate(12.3e9, "B/s") = "12.3 GB/s".
std::string format_rate(double per_second, std::string_view unit);

}  // namespace tessera::units

// SPDX-License-Identifier: Apache-2.0
// Element types of tensors. bf16 is a storage type: arithmetic on it happens in f32.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace tessera {

enum class DType : std::uint8_t { f64, f32, bf16 };

/// Upper 16 bits of an f32; conversion from f32 rounds to nearest even, NaN stays NaN.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    bits = static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40u : rounded >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
  explicit operator double() const { return static_cast<double>(static_cast<float>(*this)); }
};

constexpr std::int64_t size_of(DType t) { return t == DType::f64 ? 8 : t == DType::f32 ? 4 : 2; }

/// Type in which sums over this storage type are kept: f64 for f64, f32 otherwise.
constexpr DType accumulate_type(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

constexpr std::string_view name_of(DType t) {
  return t == DType::f64 ? "f64" : t == DType::f32 ? "f32" : "bf16";
}

template <class T>
inline constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bf16;

}  // namespace tessera

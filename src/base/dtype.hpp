// SPDX-License-Identifier: Apache-2.0
// Element types of tensors. bf16 and f16 are storage types: arithmetic on them happens in f32.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

namespace tessera {

enum class DType : std::uint8_t { f64, f32, bf16, f16 };
inline constexpr DType all_dtypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

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

/// IEEE 754 binary16: conversion from f32 rounds to nearest even, what is too large becomes
/// infinite, what is too small subnormal or 0, NaN stays NaN. The same bits as the compiler's
/// _Float16 (a test compares them), which calls a slow function where the processor is not known to
/// convert.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value), a = u & 0x7fffffffu;
    std::uint32_t h = 0;
    if (a > 0x7f800000u) {
      h = 0x7e00u | ((a >> 13) & 0x3ffu);  // NaN
    } else if (a >= 0x47800000u) {         // 65536
      h = 0x7c00u;
    } else if (a < 0x38800000u) {
      // Below 2^-14: a sum with 0.5 ends at 2^-24, where subnormal numbers do.
      h = std::bit_cast<std::uint32_t>(std::bit_cast<float>(a) + 0.5f) - 0x3f000000u;
    } else {
      const std::uint32_t b = a - (112u << 23);  // from the exponents of f32 to those of f16
      h = (b + 0xfffu + ((b >> 13) & 1u)) >> 13;
    }
    bits = static_cast<std::uint16_t>(h | ((u >> 16) & 0x8000u));
  }
  explicit operator float() const {
    // The shifted number has the exponents of f16, 112 too small; those of infinity and NaN are not
    // a matter of scale.
    const std::uint32_t m = bits & 0x7fffu;
    const float scaled = std::bit_cast<float>(m << 13) * 0x1p112f;
    const std::uint32_t u =
        std::bit_cast<std::uint32_t>(scaled) | (m >= 0x7c00u ? 0x7f800000u : 0u);
    return std::bit_cast<float>(u | std::uint32_t{bits & 0x8000u} << 16);
  }
  explicit operator double() const { return static_cast<double>(static_cast<float>(*this)); }
};

/// Types of 16 bits without arithmetic.
template <class T>
concept StorageOnly = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

/// From one element type to another; 16 bits are reached by way of f32.
template <class To, class From>
To element_cast(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (StorageOnly<To>) {
    return To(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

constexpr std::int64_t size_of(DType t) { return t == DType::f64 ? 8 : t == DType::f32 ? 4 : 2; }

/// Type in which sums over this storage type are kept: f64 for f64, f32 otherwise.
constexpr DType accumulate_type(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

constexpr std::string_view name_of(DType t) {
  constexpr std::string_view names[] = {"f64", "f32", "bf16", "f16"};
  return names[static_cast<int>(t)];
}

/// The type of this name; empty for other words.
constexpr std::optional<DType> dtype_named(std::string_view name) {
  for (const DType t : all_dtypes)
    if (name_of(t) == name) return t;
  return {};
}

template <class T>
inline constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bf16;
template <>
inline constexpr DType dtype_of<Float16> = DType::f16;

}  // namespace tessera

#pragma once

#include <bit>
#include <cstdint>

/**
 * float16 and bfloat16 to float32 and back, rounding to nearest, ties to even.
 * Branch-free where it matters, so that loops over them vectorise, and the same
 * on every machine, whatever its compiler knows of half floats.
 */
namespace jlaunch {

inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t magnitude = (half & 0x7FFFU) << 13;
  // Exponent bias 15 to 127; subnormal halves become normal on the way.
  const auto finite =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
  const bool special = magnitude >= 0x7C00U << 13;
  return std::bit_cast<float>(
      sign | (special ? magnitude | 0x7F80'0000U : finite));
}

inline std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFF'FFFFU;
  const std::uint32_t rebased = magnitude - (112U << 23);
  const std::uint32_t normal =
      (rebased + 0xFFFU + ((rebased >> 13) & 1U)) >> 13;
  // 0.5's last bit is worth what a subnormal half's is: the addition rounds.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
      0x3F00'0000U;
  const std::uint32_t nan = 0x7E00U | ((magnitude >> 13) & 0x3FFU);
  std::uint32_t half = magnitude < 0x3880'0000U ? subnormal : normal;
  half = magnitude >= 0x477F'F000U ? 0x7C00U : half; // rounds to infinity
  half = magnitude > 0x7F80'0000U ? nan : half;
  return static_cast<std::uint16_t>(sign | half);
}

inline float bfloat_to_float(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

inline std::uint16_t float_to_bfloat(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40U;
  const bool is_nan = (bits & 0x7FFF'FFFFU) > 0x7F80'0000U;
  return static_cast<std::uint16_t>(is_nan ? nan : rounded);
}

} // namespace jlaunch

#pragma once
// bfloat16: the upper half of a float32. 8 exponent bits, 8 bits of significand.
#include <bit>
#include <cstdint>

namespace accrue {

/// Storage only: arithmetic happens in float32. Conversion rounds to nearest, ties to even; NaN
/// stays NaN.
struct bfloat16 {
  std::uint16_t bits;

  bfloat16() = default;
  explicit constexpr bfloat16(float value) : bits(round(value)) {}
  explicit constexpr operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  static constexpr bfloat16 from_bits(std::uint16_t b) {
    bfloat16 r;
    r.bits = b;
    return r;
  }

 private:
  static constexpr std::uint16_t round(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
    return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};
static_assert(sizeof(bfloat16) == 2);
}  // namespace accrue

#pragma once
// How parameters without master weights are rounded to bfloat16.
#include <cstdint>
#include <accrue/core/random.h>

namespace accrue::kernels {

/// Stochastic rounding (Gupta et al. 2015, "Deep Learning with Limited Numerical Precision"): x
/// goes to one of its two neighbours in bfloat16, to the upper with probability (x - lower) /
/// (upper - lower), so that the expectation is x and updates far below half a unit in the last
/// place are not lost. The upper half of (bits of x as float32 + r), r the 16 random bits of the
/// element: half i % 2 (0: the low one) of word i % 8 / 2 of
///   philox4x32({i / 8, kRoundingSite, offset low, offset high}, random_key(seed, step))
/// for element i of the parameter that begins at `offset` of the flat blocks. Infinities and NaN
/// stay; finite numbers beyond the largest bfloat16 may become infinite.
/// The arithmetic before it is written in fused multiply-adds, products, quotients and roots, each
/// rounded once: the result has the same bits on every instruction set and device.
inline constexpr std::uint32_t kRoundingSite = 0x524e4421u;
}  // namespace accrue::kernels

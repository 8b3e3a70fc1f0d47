#pragma once
// Stochastic rounding to bfloat16 on the device: the bits of kernels/stochastic_rounding.h.
#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/philox.cuh>
#include <accrue/kernels/stochastic_rounding.h>

namespace accrue::kernels::cuda {

/// Rounds elements [element, element + 8) of the parameter that begins at `offset`; element is a
/// multiple of 8.
__device__ __forceinline__ void round_stochastically(std::uint64_t key, std::int64_t offset,
                                                     std::int64_t element, float (&v)[8]) {
  const auto low = static_cast<std::uint32_t>(offset);
  const auto high = static_cast<std::uint32_t>(static_cast<std::uint64_t>(offset) >> 32);
  const uint4 random =
      philox(static_cast<std::uint32_t>(element / 8), kRoundingSite, low, high, key);
  const std::uint32_t words[4] = {random.x, random.y, random.z, random.w};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const std::uint32_t r = k % 2 ? words[k / 2] >> 16 : words[k / 2] & 0xffffu;
    const float rounded = __uint_as_float((__float_as_uint(v[k]) + r) & 0xffff0000u);
    v[k] = v[k] == v[k] ? rounded : v[k];
  }
}
}  // namespace accrue::kernels::cuda

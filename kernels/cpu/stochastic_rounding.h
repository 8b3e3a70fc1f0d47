#pragma once
// Stochastic rounding to bfloat16. Included after simd_begin.h; the file that includes it includes
// kernels/stochastic_rounding.h before that.
#include <accrue/kernels/cpu/philox.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {

/// a b + c, rounded once.
ACCRUE_INLINE Vec<float> fused(Vec<float> a, Vec<float> b, Vec<float> c) {
#if ACCRUE_ISA == 2
  return (Vec<float>)_mm512_maskz_fmadd_ps(0xFFFF, (__m512)a, (__m512)b, (__m512)c);
#elif ACCRUE_ISA == 1
  return (Vec<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  Vec<float> r;
  for (int j = 0; j < kLanes<float>; ++j) r[j] = std::fma(a[j], b[j], c[j]);
  return r;
#endif
}

/// The neighbour of each lane in bfloat16 that its random bits choose, as float32.
ACCRUE_INLINE Vec<float> round_stochastically(Vec<float> v, const std::uint16_t* random) {
  VectorTypes<float>::Half r;
  std::memcpy(&r, random, sizeof r);
  const auto bits = (VecBits<float>)v + __builtin_convertvector(r, VecBits<float>);
  return v == v ? (Vec<float>)(bits & 0xffff0000u) : v;
}

/// body(i, random, part) over elements [first, first + size) of the parameter that begins at
/// `offset`: i counts from 0, random are the 16 bits of each lane. first is a multiple of 8.
template <class Body>
ACCRUE_INLINE void rounding_loop(std::uint64_t key, std::int64_t offset, std::int64_t first,
                                 std::int64_t size, Body body) {
  constexpr std::int64_t kStep = 8 * kLanes<float>;
  for (std::int64_t e = 0; e < size; e += kStep) {
    alignas(64) std::uint32_t words[kStep / 2];
    philox_block(key, static_cast<std::uint32_t>((first + e) / 8), kRoundingSite,
                 static_cast<std::uint64_t>(offset), words);
    alignas(64) std::uint16_t random[kStep];
    std::memcpy(random, words, sizeof random);
    vector_loop<float>(std::min(kStep, size - e),
                       [&](std::int64_t i, auto part) { body(e + i, random + i, part); });
  }
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME

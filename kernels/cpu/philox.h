#pragma once
// Philox4x32-10 for as many counters as a vector has lanes.
// Included after simd_begin.h; the file that includes it includes core/random.h before that.
#if defined(__x86_64__)
  #include <immintrin.h>
#endif

namespace accrue::kernels::ACCRUE_ISA_NAME {

/// The 64-bit products of m and the even lanes of a.
ACCRUE_INLINE VecBits<float> multiply_even(VecBits<float> a, std::uint32_t m) {
  const VecBits<float> factor = VecBits<float>{} + m;
#if ACCRUE_ISA == 2
  // The masked form: GCC 12 warns of its own header in the plain one.
  return (VecBits<float>)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)factor);
#elif ACCRUE_ISA == 1
  return (VecBits<float>)_mm256_mul_epu32((__m256i)a, (__m256i)factor);
#elif defined(__x86_64__)
  return (VecBits<float>)_mm_mul_epu32((__m128i)a, (__m128i)factor);
#else
  VecBits<float> r;
  for (int j = 0; j < kLanes<float>; j += 2) {
    const std::uint64_t p = std::uint64_t{a[j]} * factor[j];
    r[j] = static_cast<std::uint32_t>(p);
    r[j + 1] = static_cast<std::uint32_t>(p >> 32);
  }
  return r;
#endif
}

/// Lane j of the result is lane f(j) of a, or lane f(j) - kLanes of b.
template <class F, int... J>
ACCRUE_INLINE VecBits<float> pick(VecBits<float> a, VecBits<float> b, F,
                                  std::integer_sequence<int, J...>) {
  return __builtin_shufflevector(a, b, F{}(J)...);
}
template <class F>
ACCRUE_INLINE VecBits<float> pick(VecBits<float> a, VecBits<float> b, F f) {
  return pick(a, b, f, std::make_integer_sequence<int, kLanes<float>>{});
}

/// Words 4 c .. 4 c + 3 of `out` are philox4x32({first + c, site, sample low, sample high}, key),
/// for the counters c = 0 .. kLanes<float> - 1.
ACCRUE_INLINE void philox_block(std::uint64_t key, std::uint32_t first, std::uint32_t site,
                                std::uint64_t sample, std::uint32_t* out) {
  using U = VecBits<float>;
  constexpr int kL = kLanes<float>;
  // Counters in the order that the transposition at the end undoes.
  U c0;
  for (int j = 0; j < kL; ++j) c0[j] = first + static_cast<std::uint32_t>(j % 4 * (kL / 4) + j / 4);
  U c1 = U{} + site, c2 = U{} + static_cast<std::uint32_t>(sample);
  U c3 = U{} + static_cast<std::uint32_t>(sample >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  const auto high = [](int j) { return j % 2 ? kL + j : j + 1; };
  const auto low = [](int j) { return j % 2 ? kL + j - 1 : j; };
  for (int round = 0; round < 10; ++round) {
    const U a_even = multiply_even(c0, 0xD2511F53u), b_even = multiply_even(c2, 0xCD9E8D57u);
    const U a_odd = multiply_even((U)((VecBits<double>)c0 >> 32), 0xD2511F53u);
    const U b_odd = multiply_even((U)((VecBits<double>)c2 >> 32), 0xCD9E8D57u);
    c0 = pick(b_even, b_odd, high) ^ c1 ^ k0;
    c1 = pick(b_even, b_odd, low);
    c2 = pick(a_even, a_odd, high) ^ c3 ^ k1;
    c3 = pick(a_even, a_odd, low);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  // Within every four lanes: rows to columns.
  const auto low_pair = [](int j) { return j / 4 * 4 + j % 4 / 2 + (j % 2 ? kL : 0); };
  const auto high_pair = [](int j) { return j / 4 * 4 + 2 + j % 4 / 2 + (j % 2 ? kL : 0); };
  const auto low_half = [](int j) { return j / 4 * 4 + j % 2 + (j % 4 / 2 ? kL : 0); };
  const auto high_half = [](int j) { return j / 4 * 4 + 2 + j % 2 + (j % 4 / 2 ? kL : 0); };
  const U t0 = pick(c0, c1, low_pair), t1 = pick(c0, c1, high_pair);
  const U t2 = pick(c2, c3, low_pair), t3 = pick(c2, c3, high_pair);
  const U rows[4] = {pick(t0, t2, low_half), pick(t0, t2, high_half), pick(t1, t3, low_half),
                     pick(t1, t3, high_half)};
  std::memcpy(out, rows, sizeof rows);
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME

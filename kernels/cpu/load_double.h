#pragma once
// Loads that widen to a vector of doubles. Included behind simd_begin.h; <immintrin.h> before it.

namespace accrue::kernels::ACCRUE_ISA_NAME {

// By intrinsics: GCC 12 converts a vector in halves, through memory. (The masked form of AVX-512,
// since it warns about its own plain one.)
ACCRUE_INLINE Vec<double> load_double(const float* p) {
#if ACCRUE_ISA == 2
  return (Vec<double>)_mm512_maskz_cvtps_pd(0xFF, _mm256_loadu_ps(p));
#elif ACCRUE_ISA == 1
  return (Vec<double>)_mm256_cvtps_pd(_mm_loadu_ps(p));
#else
  Vec<double> v;
  for (int j = 0; j < kLanes<double>; ++j) v[j] = static_cast<double>(p[j]);
  return v;
#endif
}
template <class T>
ACCRUE_INLINE Vec<double> load_double(const T* p) {
  return load<double>(p);
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME

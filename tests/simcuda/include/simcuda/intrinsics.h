#pragma once
// Intrinsics of the device: loads with cache hints, bits, conversions, arithmetic with a stated
// rounding, fast mathematics. Fast functions are computed accurately here: the device's last bits
// differ, tests compare with a tolerance.
#include <math.h>  // sqrt(float) and the like without std::, as on the device

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#define SIMCUDA_LOAD(name)            \
  template <class T>                  \
  SIMCUDA_INLINE T name(const T* p) { \
    return *p;                        \
  }
SIMCUDA_LOAD(__ldg)
SIMCUDA_LOAD(__ldca)
SIMCUDA_LOAD(__ldcg)
SIMCUDA_LOAD(__ldcs)
SIMCUDA_LOAD(__ldlu)
SIMCUDA_LOAD(__ldcv)
#undef SIMCUDA_LOAD
#define SIMCUDA_STORE(name)                                       \
  template <class T>                                              \
  SIMCUDA_INLINE void name(T* p, std::type_identity_t<T> value) { \
    *p = value;                                                   \
  }
SIMCUDA_STORE(__stwb)
SIMCUDA_STORE(__stcg)
SIMCUDA_STORE(__stcs)
SIMCUDA_STORE(__stwt)
#undef SIMCUDA_STORE

// Bits.
SIMCUDA_INLINE int __popc(unsigned x) { return std::popcount(x); }
SIMCUDA_INLINE int __popcll(unsigned long long x) { return std::popcount(x); }
SIMCUDA_INLINE int __ffs(int x) { return __builtin_ffs(x); }
SIMCUDA_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
SIMCUDA_INLINE int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
SIMCUDA_INLINE int __clzll(long long x) {
  return std::countl_zero(static_cast<unsigned long long>(x));
}
SIMCUDA_INLINE unsigned long long __brevll(unsigned long long x) {
  x = (x & 0x5555555555555555ull) << 1 | (x >> 1 & 0x5555555555555555ull);
  x = (x & 0x3333333333333333ull) << 2 | (x >> 2 & 0x3333333333333333ull);
  x = (x & 0x0f0f0f0f0f0f0f0full) << 4 | (x >> 4 & 0x0f0f0f0f0f0f0f0full);
  return __builtin_bswap64(x);
}
SIMCUDA_INLINE unsigned __brev(unsigned x) { return static_cast<unsigned>(__brevll(x) >> 32); }
SIMCUDA_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long all = static_cast<unsigned long long>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i);
    unsigned byte = static_cast<unsigned>(all >> (8 * (s & 7))) & 0xff;
    if (s & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}
SIMCUDA_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(
      ((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31)) >> 32);
}
SIMCUDA_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}
SIMCUDA_INLINE unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
SIMCUDA_INLINE int __mulhi(int a, int b) {
  return static_cast<int>(static_cast<long long>(a) * b >> 32);
}
SIMCUDA_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}
SIMCUDA_INLINE long long __mul64hi(long long a, long long b) {
  __extension__ using Wide = __int128;
  return static_cast<long long>(static_cast<Wide>(a) * b >> 64);
}
SIMCUDA_INLINE unsigned __umul24(unsigned a, unsigned b) {
  return (a & 0xffffffu) * (b & 0xffffffu);
}
SIMCUDA_INLINE int __mul24(int a, int b) {
  const int x = static_cast<int>(static_cast<unsigned>(a) << 8) >> 8;
  const int y = static_cast<int>(static_cast<unsigned>(b) << 8) >> 8;
  return static_cast<int>(static_cast<unsigned>(x) * static_cast<unsigned>(y));
}

// The same bits as another type.
SIMCUDA_INLINE unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
SIMCUDA_INLINE int __float_as_int(float x) { return std::bit_cast<int>(x); }
SIMCUDA_INLINE float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
SIMCUDA_INLINE float __int_as_float(int x) { return std::bit_cast<float>(x); }
SIMCUDA_INLINE long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
SIMCUDA_INLINE double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
SIMCUDA_INLINE int __double2hiint(double x) {
  return static_cast<int>(std::bit_cast<std::uint64_t>(x) >> 32);
}
SIMCUDA_INLINE int __double2loint(double x) {
  return static_cast<int>(static_cast<unsigned>(std::bit_cast<std::uint64_t>(x)));
}

namespace simcuda {
/// Keeps the compiler from merging the value into a fused multiply-add.
SIMCUDA_INLINE float alone(float x) {
#if defined(__x86_64__)
  asm("" : "+x"(x));
#endif
  return x;
}
SIMCUDA_INLINE double alone(double x) {
#if defined(__x86_64__)
  asm("" : "+x"(x));
#endif
  return x;
}
/// Conversions of the device saturate, and take NaN to 0.
template <class I, class F>
SIMCUDA_INLINE I to_integer(F x) {
  if (!(x == x)) return 0;
  constexpr F kLow = static_cast<F>(std::numeric_limits<I>::min());
  constexpr F kHigh = static_cast<F>(std::numeric_limits<I>::max());
  if (x <= kLow) return std::numeric_limits<I>::min();
  if (x >= kHigh) return std::numeric_limits<I>::max();
  return static_cast<I>(x);
}
}  // namespace simcuda

// Arithmetic, rounded to nearest, never contracted.
SIMCUDA_INLINE float __fadd_rn(float a, float b) {
  return simcuda::alone(simcuda::alone(a) + simcuda::alone(b));
}
SIMCUDA_INLINE float __fsub_rn(float a, float b) {
  return simcuda::alone(simcuda::alone(a) - simcuda::alone(b));
}
SIMCUDA_INLINE float __fmul_rn(float a, float b) { return simcuda::alone(a * b); }
SIMCUDA_INLINE float __fdiv_rn(float a, float b) { return simcuda::alone(a / b); }
SIMCUDA_INLINE float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SIMCUDA_INLINE float __frcp_rn(float x) { return 1.0f / x; }
SIMCUDA_INLINE float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
SIMCUDA_INLINE float __frsqrt_rn(float x) {
  return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(x)));
}
SIMCUDA_INLINE double __dadd_rn(double a, double b) {
  return simcuda::alone(simcuda::alone(a) + simcuda::alone(b));
}
SIMCUDA_INLINE double __dsub_rn(double a, double b) {
  return simcuda::alone(simcuda::alone(a) - simcuda::alone(b));
}
SIMCUDA_INLINE double __dmul_rn(double a, double b) { return simcuda::alone(a * b); }
SIMCUDA_INLINE double __ddiv_rn(double a, double b) { return simcuda::alone(a / b); }
SIMCUDA_INLINE double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
SIMCUDA_INLINE double __drcp_rn(double x) { return 1.0 / x; }
SIMCUDA_INLINE double __dsqrt_rn(double x) { return __builtin_sqrt(x); }

// Conversions.
#define SIMCUDA_CONVERT(name, I, F, round) \
  SIMCUDA_INLINE I name(F x) { return simcuda::to_integer<I>(round(x)); }
SIMCUDA_CONVERT(__float2int_rn, int, float, std::nearbyint)
SIMCUDA_CONVERT(__float2int_rz, int, float, std::trunc)
SIMCUDA_CONVERT(__float2int_rd, int, float, std::floor)
SIMCUDA_CONVERT(__float2int_ru, int, float, std::ceil)
SIMCUDA_CONVERT(__float2uint_rn, unsigned, float, std::nearbyint)
SIMCUDA_CONVERT(__float2uint_rz, unsigned, float, std::trunc)
SIMCUDA_CONVERT(__float2uint_rd, unsigned, float, std::floor)
SIMCUDA_CONVERT(__float2uint_ru, unsigned, float, std::ceil)
SIMCUDA_CONVERT(__float2ll_rn, long long, float, std::nearbyint)
SIMCUDA_CONVERT(__float2ll_rz, long long, float, std::trunc)
SIMCUDA_CONVERT(__float2ull_rn, unsigned long long, float, std::nearbyint)
SIMCUDA_CONVERT(__double2int_rn, int, double, std::nearbyint)
SIMCUDA_CONVERT(__double2int_rz, int, double, std::trunc)
SIMCUDA_CONVERT(__double2uint_rn, unsigned, double, std::nearbyint)
SIMCUDA_CONVERT(__double2ll_rn, long long, double, std::nearbyint)
SIMCUDA_CONVERT(__double2ll_rz, long long, double, std::trunc)
SIMCUDA_CONVERT(__double2ull_rn, unsigned long long, double, std::nearbyint)
#undef SIMCUDA_CONVERT
SIMCUDA_INLINE float __int2float_rn(int x) { return static_cast<float>(x); }
SIMCUDA_INLINE float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
SIMCUDA_INLINE float __ll2float_rn(long long x) { return static_cast<float>(x); }
SIMCUDA_INLINE float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
SIMCUDA_INLINE float __double2float_rn(double x) { return static_cast<float>(x); }
SIMCUDA_INLINE double __int2double_rn(int x) { return x; }
SIMCUDA_INLINE double __uint2double_rn(unsigned x) { return x; }
SIMCUDA_INLINE double __ll2double_rn(long long x) { return static_cast<double>(x); }

// Mathematics. The names with two underscores are declared by the C library as well.
inline float __expf(float x) noexcept { return std::exp(x); }
inline float __exp10f(float x) noexcept { return std::exp2(x * 3.32192809488736234787f); }
inline float __logf(float x) noexcept { return std::log(x); }
inline float __log2f(float x) noexcept { return std::log2(x); }
inline float __log10f(float x) noexcept { return std::log10(x); }
inline float __sinf(float x) noexcept { return std::sin(x); }
inline float __cosf(float x) noexcept { return std::cos(x); }
inline float __tanf(float x) noexcept { return std::tan(x); }
inline float __tanhf(float x) noexcept { return std::tanh(x); }
inline float __powf(float x, float y) noexcept { return std::pow(x, y); }
SIMCUDA_INLINE float __fdividef(float a, float b) { return a / b; }
SIMCUDA_INLINE float fdividef(float a, float b) { return a / b; }
SIMCUDA_INLINE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
SIMCUDA_INLINE float rsqrtf(float x) { return __frsqrt_rn(x); }
SIMCUDA_INLINE double rsqrt(double x) { return 1.0 / std::sqrt(x); }
SIMCUDA_INLINE float rsqrt(float x) { return rsqrtf(x); }
SIMCUDA_INLINE float normcdff(float x) { return 0.5f * std::erfc(-x * 0.70710678118654752440f); }
SIMCUDA_INLINE double normcdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }
// Exact at the multiples of 1/2, as on the device.
SIMCUDA_INLINE double sinpi(double x) {
  const double r = std::remainder(x, 2.0);
  return r == 0 || r == 1 || r == -1 ? 0.0 * r : std::sin(3.14159265358979323846 * r);
}
SIMCUDA_INLINE double cospi(double x) {
  const double r = std::remainder(x, 2.0);
  return r == 0.5 || r == -0.5 ? 0.0 : std::cos(3.14159265358979323846 * r);
}
SIMCUDA_INLINE float sinpif(float x) { return static_cast<float>(sinpi(double{x})); }
SIMCUDA_INLINE float cospif(float x) { return static_cast<float>(cospi(double{x})); }
SIMCUDA_INLINE void sincospif(float x, float* sine, float* cosine) {
  *sine = sinpif(x);
  *cosine = cospif(x);
}
SIMCUDA_INLINE void sincospi(double x, double* sine, double* cosine) {
  *sine = sinpi(x);
  *cosine = cospi(x);
}
inline void __sincosf(float x, float* sine, float* cosine) noexcept {
  *sine = std::sin(x);
  *cosine = std::cos(x);
}

// min and max of the device: mixed signs compare as unsigned, mixed widths in the wider type.
#define SIMCUDA_MIN_MAX(R, A, B)                                                          \
  SIMCUDA_INLINE R min(A a, B b) {                                                        \
    return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); \
  }                                                                                       \
  SIMCUDA_INLINE R max(A a, B b) {                                                        \
    return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(b) : static_cast<R>(a); \
  }
SIMCUDA_MIN_MAX(int, int, int)
SIMCUDA_MIN_MAX(unsigned, unsigned, unsigned)
SIMCUDA_MIN_MAX(unsigned, int, unsigned)
SIMCUDA_MIN_MAX(unsigned, unsigned, int)
SIMCUDA_MIN_MAX(long, long, long)
SIMCUDA_MIN_MAX(unsigned long, unsigned long, unsigned long)
SIMCUDA_MIN_MAX(unsigned long, long, unsigned long)
SIMCUDA_MIN_MAX(unsigned long, unsigned long, long)
SIMCUDA_MIN_MAX(long long, long long, long long)
SIMCUDA_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
SIMCUDA_MIN_MAX(unsigned long long, long long, unsigned long long)
SIMCUDA_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef SIMCUDA_MIN_MAX
// As on the device, a NaN loses against a number.
SIMCUDA_INLINE float min(float a, float b) { return __builtin_fminf(a, b); }
SIMCUDA_INLINE float max(float a, float b) { return __builtin_fmaxf(a, b); }
SIMCUDA_INLINE double min(double a, double b) { return __builtin_fmin(a, b); }
SIMCUDA_INLINE double max(double a, double b) { return __builtin_fmax(a, b); }
SIMCUDA_INLINE double min(float a, double b) { return __builtin_fmin(a, b); }
SIMCUDA_INLINE double max(float a, double b) { return __builtin_fmax(a, b); }
SIMCUDA_INLINE double min(double a, float b) { return __builtin_fmin(a, b); }
SIMCUDA_INLINE double max(double a, float b) { return __builtin_fmax(a, b); }

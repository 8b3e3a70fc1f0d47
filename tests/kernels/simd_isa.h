#pragma once
// What simd_isa.cpp defines once per instruction set, for simd_test.cpp.
#include <cstdint>
#include <accrue/core/bfloat16.h>

namespace accrue::test {
enum class SimdFunction { kExp, kTanh, kErf, kSigmoid };
}
#define ACCRUE_SIMD_TEST(isa)                                                             \
  namespace accrue::kernels::isa {                                                        \
  void simd_apply(test::SimdFunction function, const float* x, float* y, std::int64_t n); \
  void simd_narrow(const float* x, bfloat16* y, std::int64_t n);                          \
  void simd_widen(const bfloat16* x, float* y, std::int64_t n);                           \
  }
ACCRUE_SIMD_TEST(portable)
ACCRUE_SIMD_TEST(avx2)
ACCRUE_SIMD_TEST(avx512)

// The functions of kernels/cpu/simd_math.h and the conversions of simd_vector.h, reachable from a
// test. Compiled once per instruction set (tests/CMakeLists.txt).
#include "tests/kernels/simd_isa.h"
#include <accrue/kernels/cpu/simd_begin.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
template <class F>
void map(const float* x, float* y, std::int64_t n, F f) {
  vector_loop<float>(
      n, [&](std::int64_t i, auto part) { store(y + i, f(load<float>(x + i, part)), part); });
}
}  // namespace

void simd_apply(test::SimdFunction function, const float* x, float* y, std::int64_t n) {
  switch (function) {
    case test::SimdFunction::kExp: return map(x, y, n, [](auto v) { return exp(v); });
    case test::SimdFunction::kTanh: return map(x, y, n, [](auto v) { return tanh(v); });
    case test::SimdFunction::kErf: return map(x, y, n, [](auto v) { return erf(v); });
    case test::SimdFunction::kSigmoid:
      return map(x, y, n, [](auto v) { return sigmoid<float>(v); });
  }
}

void simd_narrow(const float* x, bfloat16* y, std::int64_t n) {
  vector_loop<float>(
      n, [&](std::int64_t i, auto part) { store(y + i, load<float>(x + i, part), part); });
}
void simd_widen(const bfloat16* x, float* y, std::int64_t n) {
  vector_loop<float>(
      n, [&](std::int64_t i, auto part) { store(y + i, load<float>(x + i, part), part); });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

#pragma once
// exp, tanh, erf and sigmoid on vectors. float32: polynomials; the largest error that
// tests/kernels/simd_test.cpp allows in its scan, in units in the last place: exp 1, tanh 1.5, erf
// 1.5, sigmoid 2.5 (denormal results are flushed to 0). float64 (tests only): the C library, lane
// by lane. exp: Cody-Waite reduction and the minimax polynomial of Cephes' expf (Moshier). tanh:
// polynomial of Cephes' tanhf below 0.625, through exp above. erf: x + x P(x^2) below 0.9, 1 -
// exp(-Q(|x|)) above, with Q fitted to -log(erfc); coefficients by Chebyshev fit.

namespace accrue::kernels::ACCRUE_ISA_NAME {

template <class F>
ACCRUE_INLINE Vec<double> by_lane(Vec<double> x, F f) {
  for (int j = 0; j < kLanes<double>; ++j) x[j] = f(x[j]);
  return x;
}

/// e^x. Below -87.33 the result is 0 (denormals are flushed), above 88.72 it is +inf; NaN stays
/// NaN.
ACCRUE_INLINE Vec<float> exp(Vec<float> x) {
  using V = Vec<float>;
  const V clamped = min<float>(max<float>(x, splat(-88.0f)), splat(89.0f));
  const V shifted =
      clamped * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const V n = shifted - 12582912.0f;
  V r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors, since n = 128 has no float of its own.
  const VecInt<float> k = __builtin_convertvector(n, VecInt<float>);
  const VecInt<float> half = k >> 1;
  const V lo = (V)((half + 127) << 23), hi = (V)((k - half + 127) << 23);
  V y = p * lo * hi;
  y = x > splat(88.7228391f) ? splat(std::numeric_limits<float>::infinity()) : y;
  y = x < splat(-87.3365448f) ? V{} : y;
  return x == x ? y : x;
}
ACCRUE_INLINE Vec<double> exp(Vec<double> x) {
  return by_lane(x, [](double v) { return std::exp(v); });
}

ACCRUE_INLINE Vec<float> tanh(Vec<float> x) {
  using V = Vec<float>;
  const V a = abs<float>(x), z = x * x;
  V p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const V small = p * z * x + x;
  const V e = exp(a + a);
  const V big = 1.0f - 2.0f / (e + 1.0f);
  const V y = a < splat(0.625f) ? small : big;
  return (V)((VecBits<float>)y | ((VecBits<float>)x & 0x80000000u));
}
ACCRUE_INLINE Vec<double> tanh(Vec<double> x) {
  return by_lane(x, [](double v) { return std::tanh(v); });
}

/// 1 / (1 + e^-x).
template <class C>
ACCRUE_INLINE Vec<C> sigmoid(Vec<C> x) {
  return C(1) / (C(1) + exp(-x));
}

ACCRUE_INLINE Vec<float> erf(Vec<float> x) {
  using V = Vec<float>;
  const V z = x * x, a = min<float>(abs<float>(x), splat(4.0f));
  V p = z * -5.88249590e-4f + 4.97201597e-3f;
  p = p * z - 2.67523583e-2f;
  p = p * z + 1.12814315e-1f;
  p = p * z - 3.76124591e-1f;
  p = p * z + 1.28379151e-1f;
  const V small = x * p + x;
  V q = a * -1.64306368e-6f + 4.61638592e-5f;
  q = q * a - 5.97585749e-4f;
  q = q * a + 4.76262579e-3f;
  q = q * a - 2.64276378e-2f;
  q = q * a + 1.10087164e-1f;
  q = q * a + 6.31823897e-1f;
  q = q * a + 1.13023102f;
  q = q * a - 3.18539649e-4f;
  const V big = 1.0f - exp(-q);
  const V y = a < splat(0.9f) ? small : (x < 0 ? -big : big);
  return x == x ? y : x;
}
ACCRUE_INLINE Vec<double> erf(Vec<double> x) {
  return by_lane(x, [](double v) { return std::erf(v); });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME

#pragma once
// exp, sigmoid and the normal distribution on the device. float32: from the hardware's exp2 and
// reciprocal (2 and 1 units in the last place); float64 (tests only): the CUDA library.
#include <accrue/core/cuda/device.cuh>

namespace accrue::kernels::cuda {

/// e^x. float32: relative error below 1e-7 (2 + |x|).
__device__ __forceinline__ float fast_exp(float x) { return __expf(x); }
__device__ __forceinline__ double fast_exp(double x) { return exp(x); }

/// 1 / x; 0 for |x| > 2^126 in float32.
__device__ __forceinline__ float fast_reciprocal(float x) { return __fdividef(1.0f, x); }
__device__ __forceinline__ double fast_reciprocal(double x) { return 1.0 / x; }

/// 1 / (1 + e^-x)
template <class C>
__device__ __forceinline__ C sigmoid(C x) {
  return fast_reciprocal(C(1) + fast_exp(-x));
}

/// The normal distribution at x: cdf, and density times sqrt(2 pi). float32: the smaller tail is
/// e^(-x^2 / 2) P(t), t = 1 / (1 + 0.305 |x|), P of degree 8 with the least relative error (9.4e-8)
/// for |x| < 13.5, where e^(-x^2 / 2) vanishes.
template <class C>
struct Normal {
  C cdf, bell;
};
__device__ __forceinline__ Normal<float> normal(float x) {
  const float bell = fast_exp(-0.5f * x * x);
  const float t = fast_reciprocal(1.0f + 0.305f * fabsf(x));
  float p = 3.6699183387e-2f;
  p = p * t - 1.5298828147e-1f;
  p = p * t + 1.8571684745e-1f;
  p = p * t - 3.7976776361e-2f;
  p = p * t + 1.2102165126e-1f;
  p = p * t + 1.0342087415e-1f;
  p = p * t + 1.2246681586e-1f;
  p = p * t + 1.2163973271e-1f;
  const float tail = p * t * bell;
  return {x < 0.0f ? tail : 1.0f - tail, bell};
}
__device__ __forceinline__ Normal<double> normal(double x) {
  return {0.5 * erfc(x * -0.7071067811865476), exp(-0.5 * x * x)};
}
}  // namespace accrue::kernels::cuda

#pragma once
// What scale and the gradients of add and sub share.
#include <accrue/kernels/cuda/elementwise.cuh>

namespace accrue::kernels::cuda {

/// dx <- factor * dy. The sink may be dy itself.
template <class C>
struct TimesFactor {
  C factor;
  __device__ __forceinline__ C operator()(C x) const { return factor * x; }
};
inline void scaled_backward(Stream stream, const ConstView& dy, const GradSink& dx, double factor) {
  if (!dx) return;
  visit_float(dy.dtype, [&]<class T>() {
    visit_sink<T>(dx, [&]<class S>() {
      using F = TimesFactor<accumulate_t<T>>;
      using Body = Unary<F, DeviceSink<S>, Dense<T>>;
      run_elementwise(
          stream, dy.shape.numel(),
          Body{F{static_cast<accumulate_t<T>>(factor)}, DeviceSink<S>(dx), Dense<T>(dy)});
    });
  });
}
}  // namespace accrue::kernels::cuda

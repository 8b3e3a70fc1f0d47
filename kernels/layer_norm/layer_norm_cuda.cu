#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/norm_backward.cuh>
#include <accrue/kernels/cuda/norm_forward.cuh>
#include <accrue/kernels/layer_norm/layer_norm.h>

namespace accrue::kernels::cuda {

void layer_norm_forward(Stream stream, const LayerNormForward& a) {
  if (a.x.shape.numel() == 0) return;
  visit_float(a.x.dtype, [&]<class T>() {
    using Real = accumulate_t<T>;
    launch_norm_forward<true, T>(stream, {.x = a.x.data<T>(),
                                          .f = a.f ? a.f.data<T>() : nullptr,
                                          .weight = a.weight.data<T>(),
                                          .bias = a.bias ? a.bias.data<T>() : nullptr,
                                          .sum = a.f ? a.sum.data<T>() : nullptr,
                                          .y = a.y.data<T>(),
                                          .mean = a.mean.data<Real>(),
                                          .rstd = a.rstd.data<Real>(),
                                          .rows = a.x.shape.rows(),
                                          .cols = row_columns(a.x.shape.cols()),
                                          .eps = static_cast<Real>(a.eps)});
  });
}

void layer_norm_backward(Stream stream, const LayerNormBackward& a) {
  if (!a.dx && !a.dweight && !a.dbias) return;
  visit_float(a.x.dtype, [&]<class T>() {
    launch_norm_backward<true, T>(stream, a.dy, a.x, a.weight, a.mean, a.rstd, a.dx, a.dweight,
                                  a.dbias, a.partials);
  });
}
}  // namespace accrue::kernels::cuda

#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/norm_backward.cuh>
#include <accrue/kernels/cuda/norm_forward.cuh>
#include <accrue/kernels/rms_norm/rms_norm.h>

namespace accrue::kernels::cuda {

void rms_norm_forward(Stream stream, const RmsNormForward& a) {
  if (a.x.shape.numel() == 0) return;
  visit_float(a.x.dtype, [&]<class T>() {
    using Real = accumulate_t<T>;
    launch_norm_forward<false, T>(stream, {.x = a.x.data<T>(),
                                           .f = a.f ? a.f.data<T>() : nullptr,
                                           .weight = a.weight.data<T>(),
                                           .bias = nullptr,
                                           .sum = a.f ? a.sum.data<T>() : nullptr,
                                           .y = a.y.data<T>(),
                                           .mean = nullptr,
                                           .rstd = a.rstd.data<Real>(),
                                           .rows = a.x.shape.rows(),
                                           .cols = row_columns(a.x.shape.cols()),
                                           .eps = static_cast<Real>(a.eps)});
  });
}

void rms_norm_backward(Stream stream, const RmsNormBackward& a) {
  if (!a.dx && !a.dweight) return;
  visit_float(a.x.dtype, [&]<class T>() {
    launch_norm_backward<false, T>(stream, a.dy, a.x, a.weight, ConstView{}, a.rstd, a.dx,
                                   a.dweight, GradSink{}, a.partials);
  });
}
}  // namespace accrue::kernels::cuda

#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// y = factor * x. x (any shape), float32, bfloat16 or float64 -> y, same shape and dtype.
/// Gradient: x gets factor * dy.
Tensor scale(const Tensor& x, double factor);

namespace kernels {
struct ScaleForward {
  ConstView x;
  View y;  // may be x
  double factor = 1.0;
};
struct ScaleBackward {
  ConstView dy;
  GradSink dx;  // may be dy
  double factor = 1.0;
};
inline Work work_of(const ScaleForward& a) { return moved(a.x, a.y); }
inline Work work_of(const ScaleBackward& a) { return moved(a.dy, a.dx); }
extern const Kernel<ScaleForward> scale_forward;
extern const Kernel<ScaleBackward> scale_backward;
}  // namespace kernels
}  // namespace accrue

#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// Rectified linear unit: y = max(x, 0); NaN stays NaN. x (any shape), float32, bfloat16 or float64
/// -> y, same shape and dtype. Gradient: x gets 0 where y <= 0, else dy (0 at x = 0, dy
/// where y is NaN, as PyTorch). Only y is kept.
Tensor relu(const Tensor& x);

namespace kernels {
struct ReluForward {
  ConstView x;
  View y;  // may be x
};
struct ReluBackward {
  ConstView dy, y;
  GradSink dx;  // may be dy
};
inline Work work_of(const ReluForward& a) { return moved(a.x, a.y); }
inline Work work_of(const ReluBackward& a) { return moved(a.dy, a.y, a.dx); }
extern const Kernel<ReluForward> relu_forward;
extern const Kernel<ReluBackward> relu_backward;
}  // namespace kernels
}  // namespace accrue

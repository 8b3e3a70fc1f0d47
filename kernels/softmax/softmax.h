#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// Softmax over the last dimension (torch.softmax(x, -1), except for fully masked rows).
///   y_j = exp(x_j - max x) / sum_k exp(x_k - max x)
/// x (..., C), float32, bfloat16 or float64 -> y, same shape and dtype; sums in float32 (float64).
/// A row of -inf only gives 0, not NaN. A NaN or +inf in a row makes the whole row NaN.
/// Gradient: x, from the saved y:  dx_j = y_j (dy_j - sum_k dy_k y_k)
Tensor softmax(const Tensor& x);

namespace kernels {
struct SoftmaxForward {
  ConstView x;
  View y;  // may be x
};
struct SoftmaxBackward {
  ConstView dy, y;
  GradSink dx;  // may be dy
};
inline Work work_of(const SoftmaxForward& a) { return moved(a.x, a.y); }
inline Work work_of(const SoftmaxBackward& a) { return moved(a.dy, a.y, a.dx); }
extern const Kernel<SoftmaxForward> softmax_forward;
extern const Kernel<SoftmaxBackward> softmax_backward;
}  // namespace kernels
}  // namespace accrue

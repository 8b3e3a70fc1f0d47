#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// The first two dimensions change places: y[m, a, ...] = x[a, m, ...]  (torch.swapaxes(x, 0, 1)).
/// x (A, M, ...), float32, bfloat16 or float64 -> y (M, A, ...), same dtype. Where A or M is 1
/// nothing moves: x itself, read as the other shape. Gradient: x, swapped back.
Tensor swap_axes(const Tensor& x);

namespace kernels {
struct SwapAxesForward {
  ConstView x;  // (A, M, ...)
  View y;       // (M, A, ...), apart from x
};
struct SwapAxesBackward {
  ConstView dy;  // (M, A, ...)
  GradSink dx;   // A M ... elements, apart from dy
};
inline Work work_of(const SwapAxesForward& a) { return moved(a.x, a.y); }
inline Work work_of(const SwapAxesBackward& a) { return moved(a.dy, a.dx); }
extern const Kernel<SwapAxesForward> swap_axes_forward;
extern const Kernel<SwapAxesBackward> swap_axes_backward;
}  // namespace kernels
}  // namespace accrue

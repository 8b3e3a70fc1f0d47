#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// x in another floating dtype, rounded to nearest, ties to even (float64 to bfloat16 by way of
/// float32); x itself if it has that dtype. x (any shape), float32, bfloat16 or float64. Gradient:
/// x gets dy in x's dtype.
Tensor cast(const Tensor& x, DType to);

namespace kernels {
struct CastForward {
  ConstView x;
  View y;
};
struct CastBackward {
  ConstView dy;
  GradSink dx;  // of any floating dtype
};
inline Work work_of(const CastForward& a) { return moved(a.x, a.y); }
inline Work work_of(const CastBackward& a) { return moved(a.dy, a.dx); }
extern const Kernel<CastForward> cast_forward;
extern const Kernel<CastBackward> cast_backward;
}  // namespace kernels
}  // namespace accrue

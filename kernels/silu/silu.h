#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// Sigmoid linear unit, also called swish (Elfwing et al. 2017; as PyTorch's silu):
///   y = x s(x),  s(x) = 1 / (1 + e^-x);  dy/dx = s (1 + x (1 - s)).
/// x (any shape), float32, bfloat16 or float64 -> y, same shape and dtype. Gradient: x, recomputed
/// from x.
Tensor silu(const Tensor& x);

namespace kernels {
struct SiluForward {
  ConstView x;
  View y;  // may be x
};
struct SiluBackward {
  ConstView dy, x;
  GradSink dx;  // may be dy
};
inline Work work_of(const SiluForward& a) { return moved(a.x, a.y); }
inline Work work_of(const SiluBackward& a) { return moved(a.dy, a.x, a.dx); }
extern const Kernel<SiluForward> silu_forward;
extern const Kernel<SiluBackward> silu_backward;
}  // namespace kernels
}  // namespace accrue

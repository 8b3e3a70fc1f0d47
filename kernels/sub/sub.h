#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// y = a - b, in a's shape; b has the shape of a or of a's last dimensions (see add). Both float32,
/// bfloat16 or float64, the same. Gradients: a gets dy (without a copy where it can be), b gets -dy
/// summed over the leading dimensions, in a fixed order (by kernels::add_backward).
Tensor sub(const Tensor& a, const Tensor& b);

namespace kernels {
struct SubForward {
  ConstView a, b;  // a.shape.numel() is a multiple of b's
  View y;          // may be a, or b if it has as many elements
};
inline Work work_of(const SubForward& a) { return moved(a.a, a.b, a.y); }
extern const Kernel<SubForward> sub_forward;
}  // namespace kernels
}  // namespace accrue

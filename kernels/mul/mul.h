#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/reduce.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// y = a * b element by element, in a's shape; b has the shape of a or of a's last dimensions (see
/// add). Both float32, bfloat16 or float64, the same. Gradients: a gets dy * b, b gets dy * a
/// summed over the leading dimensions, in a fixed order. Only the factor that a wanted gradient
/// needs is kept.
Tensor mul(const Tensor& a, const Tensor& b);

namespace kernels {
struct MulForward {
  ConstView a, b;  // a.shape.numel() is a multiple of b's
  View y;          // may be a, or b if it has as many elements
};
struct MulBackward {
  ConstView dy, a, b;       // a is read only if db is wanted, b only if da is
  GradSink da, db;          // db may be dy; da too, if db is empty
  std::int64_t period = 0;  // elements of b
  View workspace{};         // float64, leading_sum(dy.numel(), period).workspace() elements
};
inline Work work_of(const MulForward& a) { return moved(a.a, a.b, a.y); }
inline Work work_of(const MulBackward& a) { return moved(a.dy, a.a, a.b, a.da, a.db); }
extern const Kernel<MulForward> mul_forward;
extern const Kernel<MulBackward> mul_backward;
}  // namespace kernels
}  // namespace accrue

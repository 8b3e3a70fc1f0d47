#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/reduce.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// y = a + b, in a's shape. b has the shape of a or of a's last dimensions, and is then repeated
/// over the leading ones: (4, 256, 768) + (768,). Both float32, bfloat16 or float64, the same.
/// Gradients: a gets dy; b gets dy summed over the leading dimensions, in a fixed order. Where it
/// can be, dy itself becomes the gradient, without a copy.
Tensor add(const Tensor& a, const Tensor& b);

namespace kernels {
struct AddForward {
  ConstView a, b;  // a.shape.numel() is a multiple of b's
  View y;          // may be a, or b if it has as many elements
};
struct AddBackward {
  ConstView dy;
  GradSink db;              // as dy, or smaller: summed over the leading dimensions
  std::int64_t period = 0;  // elements of db
  View workspace{};         // float64, leading_sum(dy.numel(), period).workspace() elements
  double factor = 1.0;      // db <- factor * sum of dy
};
inline Work work_of(const AddForward& a) { return moved(a.a, a.b, a.y); }
inline Work work_of(const AddBackward& a) { return moved(a.dy, a.db); }
extern const Kernel<AddForward> add_forward;
extern const Kernel<AddBackward> add_backward;
}  // namespace kernels
}  // namespace accrue

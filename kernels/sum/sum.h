#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/reduce.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// The sum of all elements, rank 0, in the accumulation dtype: float32 for float32 and bfloat16,
/// float64 for float64. mean: divided by their count (NaN for an empty tensor, as PyTorch).
/// Runs of at most 1024 elements are added in float32, several side by side, the runs in float64:
/// the error stays near that of rounding the result. Gradient: every element of x gets dy (/
/// count).
Tensor sum(const Tensor& x);
Tensor mean(const Tensor& x);
/// The sum over one dimension, which the result lacks; dim < 0 counts from the end. The dtype of x.
Tensor sum(const Tensor& x, int dim);
Tensor mean(const Tensor& x, int dim);

namespace kernels {
struct SumForward {
  ConstView x;       // (outer, n, inner)
  View y;            // (outer, inner), x's dtype or its accumulation dtype
  View workspace{};  // float64, plan.workspace() elements
  ReducePlan plan;
  double factor = 1.0;  // y = factor * sum
};
struct SumBackward {
  ConstView dy;  // (outer, inner)
  GradSink dx;   // (outer, n, inner), any floating dtype
  ReducePlan plan;
  double factor = 1.0;
};
inline Work work_of(const SumForward& a) { return moved(a.x, a.y); }
inline Work work_of(const SumBackward& a) { return moved(a.dy, a.dx); }
extern const Kernel<SumForward> sum_forward;
extern const Kernel<SumBackward> sum_backward;
}  // namespace kernels
}  // namespace accrue

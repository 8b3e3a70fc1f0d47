#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/residual_add/residual_add.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// Root mean square normalisation over the last dimension (Zhang, Sennrich 2019;
/// torch.nn.functional.rms_norm; the default eps is that of Llama in Hugging Face).
///   y = x rstd * weight,   rstd = 1 / sqrt(mean(x^2) + eps)
/// x (..., C), weight (C), of one floating dtype -> y (..., C). rstd is saved in float32 (float64
/// for float64), sums run in the same type.
/// Gradients: x, weight. With g = dy * weight and xhat = x rstd:
///   dx = rstd (g - xhat mean(g xhat)),  dweight = sum_rows dy xhat
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-6);

/// sum = x + f, as residual_add() without dropout, and y = rms_norm(sum): the same numbers and
/// gradients, and one pass fewer over the sum. x and f of one shape and dtype -> both that shape.
SumAndNorm residual_rms_norm(const Tensor& x, const Tensor& f, const Tensor& weight,
                             double eps = 1e-6);

namespace kernels {
struct RmsNormForward {
  ConstView x, weight;
  View y;     // may be x or f
  View rstd;  // (rows), float32 (float64 for float64)
  double eps = 1e-6;
  ConstView f{};  // where not empty, the norm is that of
  View sum{};     // sum = x + f; may be x or f
};
struct RmsNormBackward {
  ConstView dy, x, weight, rstd;
  GradSink dx, dweight;  // dx may be dy
  View partials;  // workspace (partial_workspace(rows, C), C) of rstd's dtype; see kernels/rows.h
};
inline Work work_of(const RmsNormForward& a) {
  return moved(a.x, a.weight, a.y, a.rstd, a.f, a.sum);
}
inline Work work_of(const RmsNormBackward& a) {
  return moved(a.dy, a.x, a.weight, a.rstd, a.dx, a.dweight);
}
extern const Kernel<RmsNormForward> rms_norm_forward;
extern const Kernel<RmsNormBackward> rms_norm_backward;
}  // namespace kernels
}  // namespace accrue

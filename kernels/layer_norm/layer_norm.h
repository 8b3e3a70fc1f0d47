#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/residual_add/residual_add.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// Layer normalisation over the last dimension (Ba, Kiros, Hinton 2016; torch.nn.functional
/// .layer_norm, biased variance).
///   y = (x - mean) rstd * weight + bias,   rstd = 1 / sqrt(var + eps)
/// x (..., C), weight (C), bias (C) or undefined, all of one floating dtype -> y (..., C).
/// The variance is the corrected two-pass one (Chan, Golub, LeVeque 1983: with d = x - mean,
/// var = (sum d^2 - (sum d)^2 / C) / C) and the same correction enters y and the gradients, so rows
/// with a large mean keep their digits. mean and rstd are saved in float32 (float64 for float64).
/// Gradients: x, weight, bias. With g = dy * weight and xhat = (x - mean) rstd:
///   dx = rstd (g - mean(g) - xhat mean(g xhat)),  dweight = sum_rows dy xhat,  dbias = sum_rows dy
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                  double eps = 1e-5);

/// sum = x + f, as residual_add() without dropout, and y = layer_norm(sum): the same numbers and
/// gradients, and one pass fewer over the sum. x and f of one shape and dtype -> both that shape.
SumAndNorm residual_layer_norm(const Tensor& x, const Tensor& f, const Tensor& weight,
                               const Tensor& bias = {}, double eps = 1e-5);

namespace kernels {
struct LayerNormForward {
  ConstView x, weight, bias;  // bias may be empty
  View y;                     // may be x or f
  View mean, rstd;            // (rows), float32 (float64 for float64)
  double eps = 1e-5;
  ConstView f{};  // where not empty, the norm is that of
  View sum{};     // sum = x + f; may be x or f
};
struct LayerNormBackward {
  ConstView dy, x, weight, mean, rstd;
  GradSink dx, dweight, dbias;  // dx may be dy
  View
      partials;  // workspace (partial_workspace(rows, C), 2, C) of mean's dtype; see kernels/rows.h
};
inline Work work_of(const LayerNormForward& a) {
  return moved(a.x, a.weight, a.bias, a.y, a.mean, a.rstd, a.f, a.sum);
}
inline Work work_of(const LayerNormBackward& a) {
  return moved(a.dy, a.x, a.weight, a.mean, a.rstd, a.dx, a.dweight, a.dbias);
}
extern const Kernel<LayerNormForward> layer_norm_forward;
extern const Kernel<LayerNormBackward> layer_norm_backward;
}  // namespace kernels
}  // namespace accrue

#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/layer_norm/layer_norm.h>
#include <accrue/kernels/rows.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(layer_norm_forward, LayerNormForward);
ACCRUE_KERNEL(layer_norm_backward, LayerNormBackward);
}  // namespace kernels

namespace {
struct LayerNormNode {
  static constexpr std::string_view kName = "layer_norm";
  Tensor x, weight, mean, rstd;
  bool has_bias;
  void backward(BackwardContext& c) const {
    const std::int64_t rows = x.shape().rows(), cols = x.shape().cols();
    const GradSink dx = c.sink_in_place(0), dweight = c.sink(1);
    const GradSink dbias = has_bias ? c.sink(2) : GradSink{};
    Tensor partials;
    if (dweight || dbias)
      partials = Tensor::empty({kernels::partial_workspace(rows, cols), 2, cols}, mean.dtype(),
                               mean.device(), {"layer_norm.partials", Category::kWorkspace});
    kernels::layer_norm_backward(c.stream(), {.dy = c.grad(),
                                              .x = x,
                                              .weight = weight,
                                              .mean = mean,
                                              .rstd = rstd,
                                              .dx = dx,
                                              .dweight = dweight,
                                              .dbias = dbias,
                                              .partials = partials.view()});
  }
};

// f undefined: the norm of x.
SumAndNorm apply(std::string_view op, const Tensor& x, const Tensor& f, const Tensor& weight,
                 const Tensor& bias, double eps) {
  ACCRUE_CHECK_SHAPE(x.shape().rank() >= 1, op, ": x must have at least 1 dimension, got ",
                     x.shape());
  const Shape last{x.shape().cols()};
  kernels::check_shape(op, "weight", weight, last, "the last dimension of x");
  kernels::check_same(op, "x", x, "weight", weight);
  if (bias.defined()) kernels::check_shape(op, "bias", bias, last, "the last dimension of x");
  kernels::check_same(op, "x", x, "bias", bias);
  ACCRUE_CHECK(std::isfinite(eps) && eps >= 0, op, ": eps must be finite and not negative, got ",
               eps);

  Tensor sum;
  if (f.defined()) sum = Tensor::empty(x.shape(), x.dtype(), x.device(), {"residual_add.y"});
  const DType statistics = x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  const Shape rows{x.shape().rows()};
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"layer_norm.y"});
  const Tensor mean = Tensor::empty(rows, statistics, x.device(), {"layer_norm.mean"});
  const Tensor rstd = Tensor::empty(rows, statistics, x.device(), {"layer_norm.rstd"});
  kernels::layer_norm_forward(x.stream(), {.x = x,
                                           .weight = weight,
                                           .bias = bias,
                                           .y = y.view(),
                                           .mean = mean.view(),
                                           .rstd = rstd.view(),
                                           .eps = eps,
                                           .f = f,
                                           .sum = sum.view()});
  if (f.defined()) kernels::record_residual_sum(x, f, sum);
  const Tensor& of = f.defined() ? sum : x;
  if (Tape* tape = Tape::current())
    tape->record(LayerNormNode{of, weight, mean, rstd, bias.defined()}, {&of, &weight, &bias}, y);
  return {std::move(sum), std::move(y)};
}
}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  kernels::check_floating("layer_norm", "x", x);
  return apply("layer_norm", x, {}, weight, bias, eps).y;
}

SumAndNorm residual_layer_norm(const Tensor& x, const Tensor& f, const Tensor& weight,
                               const Tensor& bias, double eps) {
  kernels::check_residual("residual_layer_norm", x, f);
  return apply("residual_layer_norm", x, f, weight, bias, eps);
}
}  // namespace accrue

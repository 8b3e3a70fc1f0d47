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
}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  constexpr std::string_view kOp = "layer_norm";
  kernels::check_floating(kOp, "x", x);
  ACCRUE_CHECK_SHAPE(x.shape().rank() >= 1, kOp, ": x must have at least 1 dimension, got ",
                     x.shape());
  const Shape last{x.shape().cols()};
  kernels::check_shape(kOp, "weight", weight, last, "the last dimension of x");
  kernels::check_same(kOp, "x", x, "weight", weight);
  if (bias.defined()) kernels::check_shape(kOp, "bias", bias, last, "the last dimension of x");
  kernels::check_same(kOp, "x", x, "bias", bias);
  ACCRUE_CHECK(std::isfinite(eps) && eps >= 0, kOp, ": eps must be finite and not negative, got ",
               eps);

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
                                           .eps = eps});
  if (Tape* tape = Tape::current())
    tape->record(LayerNormNode{x, weight, mean, rstd, bias.defined()}, {&x, &weight, &bias}, y);
  return y;
}
}  // namespace accrue

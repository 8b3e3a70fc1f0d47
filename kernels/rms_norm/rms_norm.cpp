#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/rms_norm/rms_norm.h>
#include <accrue/kernels/rows.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(rms_norm_forward, RmsNormForward);
ACCRUE_KERNEL(rms_norm_backward, RmsNormBackward);
}  // namespace kernels

namespace {
struct RmsNormNode {
  static constexpr std::string_view kName = "rms_norm";
  Tensor x, weight, rstd;
  void backward(BackwardContext& c) const {
    const std::int64_t rows = x.shape().rows(), cols = x.shape().cols();
    const GradSink dx = c.sink_in_place(0), dweight = c.sink(1);
    Tensor partials;
    if (dweight)
      partials = Tensor::empty({kernels::partial_workspace(rows, cols), cols}, rstd.dtype(),
                               rstd.device(), {"rms_norm.partials", Category::kWorkspace});
    kernels::rms_norm_backward(c.stream(), {.dy = c.grad(),
                                            .x = x,
                                            .weight = weight,
                                            .rstd = rstd,
                                            .dx = dx,
                                            .dweight = dweight,
                                            .partials = partials.view()});
  }
};

// f undefined: the norm of x.
SumAndNorm apply(std::string_view op, const Tensor& x, const Tensor& f, const Tensor& weight,
                 double eps) {
  ACCRUE_CHECK_SHAPE(x.shape().rank() >= 1, op, ": x must have at least 1 dimension, got ",
                     x.shape());
  kernels::check_shape(op, "weight", weight, {x.shape().cols()}, "the last dimension of x");
  kernels::check_same(op, "x", x, "weight", weight);
  ACCRUE_CHECK(std::isfinite(eps) && eps >= 0, op, ": eps must be finite and not negative, got ",
               eps);

  Tensor sum;
  if (f.defined()) sum = Tensor::empty(x.shape(), x.dtype(), x.device(), {"residual_add.y"});
  const DType statistics = x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"rms_norm.y"});
  const Tensor rstd = Tensor::empty({x.shape().rows()}, statistics, x.device(), {"rms_norm.rstd"});
  kernels::rms_norm_forward(x.stream(), {.x = x,
                                         .weight = weight,
                                         .y = y.view(),
                                         .rstd = rstd.view(),
                                         .eps = eps,
                                         .f = f,
                                         .sum = sum.view()});
  if (f.defined()) kernels::record_residual_sum(x, f, sum);
  const Tensor& of = f.defined() ? sum : x;
  if (Tape* tape = Tape::current()) tape->record(RmsNormNode{of, weight, rstd}, {&of, &weight}, y);
  return {std::move(sum), std::move(y)};
}
}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  kernels::check_floating("rms_norm", "x", x);
  return apply("rms_norm", x, {}, weight, eps).y;
}

SumAndNorm residual_rms_norm(const Tensor& x, const Tensor& f, const Tensor& weight, double eps) {
  kernels::check_residual("residual_rms_norm", x, f);
  return apply("residual_rms_norm", x, f, weight, eps);
}
}  // namespace accrue

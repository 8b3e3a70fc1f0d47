#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/gemm.h>
#include <accrue/kernels/linear/linear.h>
#include <accrue/kernels/reduce.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(linear_forward, LinearForward);
ACCRUE_KERNEL(linear_backward, LinearBackward);
}  // namespace kernels

namespace {
struct LinearNode {
  static constexpr std::string_view kName = "linear";
  Tensor x, weight;
  void backward(BackwardContext& c) const {
    const GradSink dx = c.sink(0), dweight = c.sink(1), dbias = c.sink(2);
    const Tensor& dy = c.grad();
    const Tensor workspace = dx || dweight ? kernels::gemm_workspace(dy.device()) : Tensor{};
    Tensor sums;
    if (dbias && dy.device().target() == DeviceType::kCuda)
      sums = kernels::reduce_workspace(kernels::leading_sum(dy.numel(), weight.shape()[0]),
                                       dy.device());
    kernels::linear_backward(c.stream(), {.dy = dy,
                                          .x = x,
                                          .weight = weight,
                                          .dx = dx,
                                          .dweight = dweight,
                                          .dbias = dbias,
                                          .workspace = workspace.view(),
                                          .reduce_workspace = sums.view()});
  }
};
}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  kernels::check_floating("linear", "x", x);
  kernels::check_rank("linear", "weight", weight, 2, "(out, in)");
  kernels::check_same("linear", "x", x, "weight", weight);
  ACCRUE_CHECK_SHAPE(x.shape().rank() >= 1 && x.shape()[-1] == weight.shape()[1],
                     "linear: x must have shape (..., in) with in = ", weight.shape()[1],
                     " as in weight ", weight.shape(), ", got ", x.shape(),
                     "; weight is (out, in)");
  const std::int64_t out = weight.shape()[0];
  if (bias.defined()) {
    kernels::check_same("linear", "x", x, "bias", bias);
    kernels::check_shape("linear", "bias", bias, {out}, "one number per row of weight");
  }
  Tensor y = Tensor::empty(x.shape().with_last(out), x.dtype(), x.device(), {"linear.y"});
  const Tensor workspace = kernels::gemm_workspace(x.device());
  kernels::linear_forward(
      x.stream(),
      {.x = x, .weight = weight, .bias = bias, .y = y.view(), .workspace = workspace.view()});
  if (Tape* tape = Tape::current())
    tape->record(LinearNode{tape->wants({&weight}) ? x : Tensor{}, weight}, {&x, &weight, &bias},
                 y);
  return y;
}
}  // namespace accrue

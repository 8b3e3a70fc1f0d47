#include <atomic>
#include <accrue/config.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/gelu/gelu.h>
#include <accrue/kernels/gemm.h>
#include <accrue/kernels/linear/linear.h>
#include <accrue/kernels/reduce.h>
#if ACCRUE_HAS_CUDA
  #include <accrue/kernels/cuda/gemm.h>
#endif

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

std::atomic<GeluEpilogue> chosen_epilogue{GeluEpilogue::kAutomatic};

bool has_gelu_epilogue(Device device, DType dtype) {
#if ACCRUE_HAS_CUDA
  if (device.is_cuda() && dtype == DType::kBF16)
    return gelu_epilogue() == GeluEpilogue::kOn ||
           (gelu_epilogue() == GeluEpilogue::kAutomatic && kernels::cuda::gemm_gelu_pays(device));
#endif
  static_cast<void>(device), static_cast<void>(dtype);
  return false;
}

// The shape of y.
Shape check(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  kernels::check_floating(op, "x", x);
  kernels::check_rank(op, "weight", weight, 2, "(out, in)");
  kernels::check_same(op, "x", x, "weight", weight);
  ACCRUE_CHECK_SHAPE(x.shape().rank() >= 1 && x.shape()[-1] == weight.shape()[1], op,
                     ": x must have shape (..., in) with in = ", weight.shape()[1],
                     " as in weight ", weight.shape(), ", got ", x.shape(),
                     "; weight is (out, in)");
  const std::int64_t out = weight.shape()[0];
  if (bias.defined()) {
    kernels::check_same(op, "x", x, "bias", bias);
    kernels::check_shape(op, "bias", bias, {out}, "one number per row of weight");
  }
  return x.shape().with_last(out);
}

// Computes y, and its GELU where `gelu` is defined. y goes on the tape.
void run(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& y,
         const Tensor& gelu = {}) {
  const Tensor workspace = kernels::gemm_workspace(x.device());
  kernels::linear_forward(x.stream(), {.x = x,
                                       .weight = weight,
                                       .bias = bias,
                                       .y = y.view(),
                                       .workspace = workspace.view(),
                                       .gelu = gelu.view()});
  if (Tape* tape = Tape::current())
    tape->record(LinearNode{tape->wants({&weight}) ? x : Tensor{}, weight}, {&x, &weight, &bias},
                 y);
}
}  // namespace

void set_gelu_epilogue(GeluEpilogue e) noexcept { chosen_epilogue = e; }
GeluEpilogue gelu_epilogue() noexcept { return chosen_epilogue; }

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Shape shape = check("linear", x, weight, bias);
  Tensor y = Tensor::empty(shape, x.dtype(), x.device(), {"linear.y"});
  run(x, weight, bias, y);
  return y;
}

Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Shape shape = check("linear_gelu", x, weight, bias);
  Tensor h = Tensor::empty(shape, x.dtype(), x.device(), {"linear_gelu.h"});
  Tensor y = Tensor::empty(shape, x.dtype(), x.device(), {"linear_gelu.y"});
  if (has_gelu_epilogue(x.device(), x.dtype())) {
    run(x, weight, bias, h, y);
  } else {
    run(x, weight, bias, h);
    kernels::gelu_forward(x.stream(), {.x = h, .y = y.view()});
  }
  kernels::record_gelu(h, Gelu::kTanh, y);
  return y;
}
}  // namespace accrue

#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/mse/mse.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(mse_forward, MseForward);
ACCRUE_KERNEL(mse_backward, MseBackward);
}  // namespace kernels

namespace {
struct MseNode {
  static constexpr std::string_view kName = "mse";
  Tensor x, target;
  void backward(BackwardContext& c) const {
    const GradSink dx = c.sink(0), dtarget = c.sink(1);
    kernels::mse_backward(
        c.stream(), {.dsum = c.grad(), .x = x, .target = target, .dx = dx, .dtarget = dtarget});
  }
};
}  // namespace

Loss mse(const Tensor& x, const Tensor& target) {
  kernels::check_floating("mse", "x", x);
  kernels::check_shape("mse", "target", target, x.shape(), "the shape of x");
  kernels::check_same("mse", "x", x, "target", target);
  const DType dtype = x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  Loss loss{Tensor::empty({}, dtype, x.device(), {"mse.sum"}),
            Tensor::empty({}, dtype, x.device(), {"mse.weight"})};
  const Tensor workspace = Tensor::empty({kernels::mse_workspace(x.numel())}, DType::kF64,
                                         x.device(), {"mse.workspace", Category::kWorkspace});
  kernels::mse_forward(x.stream(), {.x = x,
                                    .target = target,
                                    .sum = loss.sum.view(),
                                    .weight = loss.weight.view(),
                                    .workspace = workspace.view()});
  if (Tape* tape = Tape::current()) tape->record(MseNode{x, target}, {&x, &target}, loss.sum);
  return loss;
}
}  // namespace accrue

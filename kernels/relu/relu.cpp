#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/relu/relu.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(relu_forward, ReluForward);
ACCRUE_KERNEL(relu_backward, ReluBackward);
}  // namespace kernels

namespace {
struct ReluNode {
  static constexpr std::string_view kName = "relu";
  Tensor y;
  void backward(BackwardContext& c) const {
    kernels::relu_backward(c.stream(), {.dy = c.grad(), .y = y, .dx = c.sink_in_place(0)});
  }
};
}  // namespace

Tensor relu(const Tensor& x) {
  kernels::check_floating("relu", "x", x);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"relu.y"});
  kernels::relu_forward(x.stream(), {.x = x, .y = y.view()});
  if (Tape* tape = Tape::current()) tape->record(ReluNode{y}, {&x}, y);
  return y;
}
}  // namespace accrue

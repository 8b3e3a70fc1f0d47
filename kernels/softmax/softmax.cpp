#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/softmax/softmax.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(softmax_forward, SoftmaxForward);
ACCRUE_KERNEL(softmax_backward, SoftmaxBackward);
}  // namespace kernels

namespace {
struct SoftmaxNode {
  static constexpr std::string_view kName = "softmax";
  Tensor y;
  void backward(BackwardContext& c) const {
    kernels::softmax_backward(c.stream(), {.dy = c.grad(), .y = y, .dx = c.sink_in_place(0)});
  }
};
}  // namespace

Tensor softmax(const Tensor& x) {
  kernels::check_floating("softmax", "x", x);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"softmax.y"});
  kernels::softmax_forward(x.stream(), {.x = x, .y = y.view()});
  if (Tape* tape = Tape::current()) tape->record(SoftmaxNode{y}, {&x}, y);
  return y;
}
}  // namespace accrue

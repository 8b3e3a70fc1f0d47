#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/scale/scale.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(scale_forward, ScaleForward);
ACCRUE_KERNEL(scale_backward, ScaleBackward);
}  // namespace kernels

namespace {
struct ScaleNode {
  static constexpr std::string_view kName = "scale";
  double factor;
  void backward(BackwardContext& c) const {
    kernels::scale_backward(c.stream(),
                            {.dy = c.grad(), .dx = c.sink_in_place(0), .factor = factor});
  }
};
}  // namespace

Tensor scale(const Tensor& x, double factor) {
  kernels::check_floating("scale", "x", x);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"scale.y"});
  kernels::scale_forward(x.stream(), {.x = x, .y = y.view(), .factor = factor});
  if (Tape* tape = Tape::current()) tape->record(ScaleNode{factor}, {&x}, y);
  return y;
}
}  // namespace accrue

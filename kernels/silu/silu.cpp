#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/silu/silu.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(silu_forward, SiluForward);
ACCRUE_KERNEL(silu_backward, SiluBackward);
}  // namespace kernels

namespace {
struct SiluNode {
  static constexpr std::string_view kName = "silu";
  Tensor x;
  void backward(BackwardContext& c) const {
    kernels::silu_backward(c.stream(), {.dy = c.grad(), .x = x, .dx = c.sink_in_place(0)});
  }
};
}  // namespace

Tensor silu(const Tensor& x) {
  kernels::check_floating("silu", "x", x);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"silu.y"});
  kernels::silu_forward(x.stream(), {.x = x, .y = y.view()});
  if (Tape* tape = Tape::current()) tape->record(SiluNode{x}, {&x}, y);
  return y;
}
}  // namespace accrue

#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/gelu/gelu.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(gelu_forward, GeluForward);
ACCRUE_KERNEL(gelu_backward, GeluBackward);
}  // namespace kernels

namespace {
struct GeluNode {
  static constexpr std::string_view kName = "gelu";
  Tensor x;
  Gelu kind;
  void backward(BackwardContext& c) const {
    kernels::gelu_backward(c.stream(),
                           {.dy = c.grad(), .x = x, .dx = c.sink_in_place(0), .kind = kind});
  }
};
}  // namespace

void kernels::record_gelu(const Tensor& x, Gelu kind, Tensor& y) {
  if (Tape* tape = Tape::current()) tape->record(GeluNode{x, kind}, {&x}, y);
}

Tensor gelu(const Tensor& x, Gelu kind) {
  kernels::check_floating("gelu", "x", x);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"gelu.y"});
  kernels::gelu_forward(x.stream(), {.x = x, .y = y.view(), .kind = kind});
  kernels::record_gelu(x, kind, y);
  return y;
}
}  // namespace accrue

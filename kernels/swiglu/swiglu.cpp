#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/swiglu/swiglu.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(swiglu_forward, SwigluForward);
ACCRUE_KERNEL(swiglu_backward, SwigluBackward);
}  // namespace kernels

namespace {
struct SwigluNode {
  static constexpr std::string_view kName = "swiglu";
  Tensor gate, up;
  void backward(BackwardContext& c) const {
    const GradSink dgate = c.wants(1) ? c.sink(0) : c.sink_in_place(0);
    kernels::swiglu_backward(
        c.stream(),
        {.dy = c.grad(), .gate = gate, .up = up, .dgate = dgate, .dup = c.sink_in_place(1)});
  }
};
}  // namespace

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  kernels::check_floating("swiglu", "gate", gate);
  kernels::check_shape("swiglu", "up", up, gate.shape(), "the shape of gate");
  kernels::check_same("swiglu", "gate", gate, "up", up);
  Tensor y = Tensor::empty(gate.shape(), gate.dtype(), gate.device(), {"swiglu.y"});
  kernels::swiglu_forward(gate.stream(), {.gate = gate, .up = up, .y = y.view()});
  if (Tape* tape = Tape::current()) tape->record(SwigluNode{gate, up}, {&gate, &up}, y);
  return y;
}
}  // namespace accrue

#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/mul/mul.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(mul_forward, MulForward);
ACCRUE_KERNEL(mul_backward, MulBackward);
}  // namespace kernels

namespace {
struct MulNode {
  static constexpr std::string_view kName = "mul";
  Tensor a, b;          // undefined where no gradient needs it
  std::int64_t period;  // elements of b
  void backward(BackwardContext& c) const {
    const Tensor& dy = c.grad();
    Tensor workspace;
    if (c.wants(1))
      workspace = kernels::reduce_workspace(kernels::leading_sum(dy.numel(), period), dy.device());
    const GradSink da = c.wants(1) ? c.sink(0) : c.sink_in_place(0);
    kernels::mul_backward(c.stream(), {.dy = dy,
                                       .a = a,
                                       .b = b,
                                       .da = da,
                                       .db = c.sink_in_place(1),
                                       .period = period,
                                       .workspace = workspace.view()});
  }
};
}  // namespace

Tensor mul(const Tensor& a, const Tensor& b) {
  kernels::check_broadcast("mul", a, b);
  Tensor y = Tensor::empty(a.shape(), a.dtype(), a.device(), {"mul.y"});
  kernels::mul_forward(a.stream(), {.a = a, .b = b, .y = y.view()});
  if (Tape* tape = Tape::current())
    tape->record(
        MulNode{tape->wants({&b}) ? a : Tensor{}, tape->wants({&a}) ? b : Tensor{}, b.numel()},
        {&a, &b}, y);
  return y;
}
}  // namespace accrue

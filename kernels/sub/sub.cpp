#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/sub/sub.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(sub_forward, SubForward);
}  // namespace kernels

namespace {
struct SubNode {
  static constexpr std::string_view kName = "sub";
  std::int64_t period;  // elements of b
  void backward(BackwardContext& c) const {
    const Tensor& dy = c.grad();
    if (!c.share(0))
      kernels::add_backward(c.stream(), {.dy = dy, .db = c.sink(0), .period = dy.numel()});
    if (!c.wants(1)) return;
    const Tensor workspace =
        kernels::reduce_workspace(kernels::leading_sum(dy.numel(), period), dy.device());
    kernels::add_backward(c.stream(), {.dy = dy,
                                       .db = c.sink_in_place(1),
                                       .period = period,
                                       .workspace = workspace.view(),
                                       .factor = -1.0});
  }
};
}  // namespace

Tensor sub(const Tensor& a, const Tensor& b) {
  kernels::check_broadcast("sub", a, b);
  Tensor y = Tensor::empty(a.shape(), a.dtype(), a.device(), {"sub.y"});
  kernels::sub_forward(a.stream(), {.a = a, .b = b, .y = y.view()});
  if (Tape* tape = Tape::current()) tape->record(SubNode{b.numel()}, {&a, &b}, y);
  return y;
}
}  // namespace accrue

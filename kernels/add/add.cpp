#include <accrue/core/tape.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/check.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(add_forward, AddForward);
ACCRUE_KERNEL(add_backward, AddBackward);
}  // namespace kernels

namespace {
struct AddNode {
  static constexpr std::string_view kName = "add";
  std::int64_t period;  // elements of b
  void backward(BackwardContext& c) const {
    const Tensor& dy = c.grad();
    if (!c.share(0))
      kernels::add_backward(c.stream(), {.dy = dy, .db = c.sink(0), .period = dy.numel()});
    if (!c.wants(1) || c.share(1)) return;
    const Tensor workspace =
        kernels::reduce_workspace(kernels::leading_sum(dy.numel(), period), dy.device());
    kernels::add_backward(
        c.stream(), {.dy = dy, .db = c.sink(1), .period = period, .workspace = workspace.view()});
  }
};
}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  kernels::check_broadcast("add", a, b);
  Tensor y = Tensor::empty(a.shape(), a.dtype(), a.device(), {"add.y"});
  kernels::add_forward(a.stream(), {.a = a, .b = b, .y = y.view()});
  if (Tape* tape = Tape::current()) tape->record(AddNode{b.numel()}, {&a, &b}, y);
  return y;
}
}  // namespace accrue

#include <accrue/core/tape.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/kernels/check.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(cast_forward, CastForward);
ACCRUE_KERNEL(cast_backward, CastBackward);
}  // namespace kernels

namespace {
struct CastNode {
  static constexpr std::string_view kName = "cast";
  void backward(BackwardContext& c) const {
    kernels::cast_backward(c.stream(), {.dy = c.grad(), .dx = c.sink(0)});
  }
};
}  // namespace

Tensor cast(const Tensor& x, DType to) {
  kernels::check_floating("cast", "x", x);
  ACCRUE_CHECK(is_floating(to), "cast: the target must be a floating dtype, got ", to);
  if (x.dtype() == to) return x;
  Tensor y = Tensor::empty(x.shape(), to, x.device(), {"cast.y"});
  kernels::cast_forward(x.stream(), {.x = x, .y = y.view()});
  if (Tape* tape = Tape::current()) tape->record(CastNode{}, {&x}, y);
  return y;
}
}  // namespace accrue

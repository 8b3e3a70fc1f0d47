#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/swap_axes/swap_axes.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(swap_axes_forward, SwapAxesForward);
ACCRUE_KERNEL(swap_axes_backward, SwapAxesBackward);
}  // namespace kernels

namespace {
struct SwapAxesNode {
  static constexpr std::string_view kName = "swap_axes";
  void backward(BackwardContext& c) const {
    kernels::swap_axes_backward(c.stream(), {.dy = c.grad(), .dx = c.sink(0)});
  }
};

Shape swapped(const Shape& shape) {
  std::int64_t sizes[Shape::kMaxRank];
  for (int i = 0; i < shape.rank(); ++i) sizes[i] = shape[i < 2 ? 1 - i : i];
  return {sizes, shape.rank()};
}
}  // namespace

Tensor swap_axes(const Tensor& x) {
  kernels::check_floating("swap_axes", "x", x);
  const Shape& shape = x.shape();
  ACCRUE_CHECK_SHAPE(shape.rank() >= 2, "swap_axes: x must have 2 dimensions or more, got ", shape);
  if (shape[0] == 1 || shape[1] == 1) return x.reshape(swapped(shape));
  Tensor y = Tensor::empty(swapped(shape), x.dtype(), x.device(), {"swap_axes.y"});
  kernels::swap_axes_forward(x.stream(), {.x = x, .y = y.view()});
  if (Tape* tape = Tape::current()) tape->record(SwapAxesNode{}, {&x}, y);
  return y;
}
}  // namespace accrue

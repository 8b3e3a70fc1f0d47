#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/max_pool2d/max_pool2d.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(max_pool2d_forward, MaxPool2dForward);
ACCRUE_KERNEL(max_pool2d_backward, MaxPool2dBackward);
}  // namespace kernels

namespace {
struct MaxPool2dNode {
  static constexpr std::string_view kName = "max_pool2d";
  Tensor places;
  kernels::WindowAxis height, width;
  void backward(BackwardContext& c) const {
    kernels::max_pool2d_backward(
        c.stream(),
        {.dy = c.grad(), .places = places, .dx = c.sink(0), .height = height, .width = width});
  }
};

kernels::WindowAxis axis(std::string_view name, std::int64_t input, std::int64_t kernel,
                         std::int64_t stride, std::int64_t padding, std::int64_t dilation,
                         bool ceil_mode) {
  constexpr std::string_view kOp = "max_pool2d";
  const kernels::WindowAxis a = kernels::window_axis(
      kOp, name, input, kernel, stride == 0 ? kernel : stride, padding, dilation, ceil_mode);
  ACCRUE_CHECK(padding <= a.extent() / 2, kOp, ": padding must be at most half of the window's ",
               name, " ", a.extent(), ", got ", padding);
  return a;
}
}  // namespace

Tensor max_pool2d(const Tensor& x, Axes2d kernel, const MaxPool2dOptions& options) {
  constexpr std::string_view kOp = "max_pool2d";
  kernels::check_floating(kOp, "x", x);
  kernels::check_rank(kOp, "x", x, 4, "(N, C, H, W)");
  const Shape& s = x.shape();
  const kernels::WindowAxis height =
      axis("height", s[2], kernel.height, options.stride.height, options.padding.height,
           options.dilation.height, options.ceil_mode);
  const kernels::WindowAxis width =
      axis("width", s[3], kernel.width, options.stride.width, options.padding.width,
           options.dilation.width, options.ceil_mode);
  ACCRUE_CHECK_SHAPE(s[2] * s[3] <= INT32_MAX, kOp, ": one image must have less than 2^31 pixels, ",
                     "x is ", s);

  const Shape out{s[0], s[1], height.output, width.output};
  Tensor y = Tensor::empty(out, x.dtype(), x.device(), {"max_pool2d.y"}), places;
  Tape* tape = Tape::current();
  if (tape && tape->wants({&x}))
    places = Tensor::empty(out, DType::kI32, x.device(), {"max_pool2d.places"});
  kernels::max_pool2d_forward(
      x.stream(),
      {.x = x, .y = y.view(), .places = places.view(), .height = height, .width = width});
  if (tape) tape->record(MaxPool2dNode{places, height, width}, {&x}, y);
  return y;
}
}  // namespace accrue

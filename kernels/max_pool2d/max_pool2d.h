#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/window.h>
#include <accrue/kernels/work.h>

namespace accrue {

struct MaxPool2dOptions {
  Axes2d stride = 0;  // 0: that of the kernel, so that windows lie side by side
  Axes2d padding = 0, dilation = 1;
  bool ceil_mode = false;  // rounds the number of windows up
};

/// The largest number of each window, as PyTorch's torch.nn.functional.max_pool2d:
///   y[n,c,p,q] = max over r, s of x[n, c, p stride + r dilation - padding, ...] inside of x
/// x (N, C, H, W), float32, bfloat16 or float64, H W < 2^31 -> y (N, C, P, Q),
///   P = floor((H + 2 padding - dilation (kernel - 1) - 1) / stride) + 1
/// or with ceil_mode the same rounded up, but the last window begins inside of x or the padding
/// before it. padding is at most half of the window's extent dilation (kernel - 1) + 1.
/// NaN wins. Of equal numbers the first in row-major order gets the gradient, of several NaN the
/// last. A window without any number (a dilation larger than x) gives -inf and has no gradient.
/// Gradient: x; an element may be the largest of several windows. Saved: the places, int32.
Tensor max_pool2d(const Tensor& x, Axes2d kernel, const MaxPool2dOptions& options = {});

namespace kernels {
struct MaxPool2dForward {
  ConstView x;
  View y;
  View places{};  // int32, shape of y: h * W + w of the largest number, -1 if none; may be empty
  WindowAxis height, width;
};
struct MaxPool2dBackward {
  ConstView dy, places;
  GradSink dx;
  WindowAxis height, width;
};
inline Work work_of(const MaxPool2dForward& a) { return moved(a.x, a.y, a.places); }
inline Work work_of(const MaxPool2dBackward& a) { return moved(a.dy, a.places, a.dx); }
extern const Kernel<MaxPool2dForward> max_pool2d_forward;
extern const Kernel<MaxPool2dBackward> max_pool2d_backward;
}  // namespace kernels
}  // namespace accrue

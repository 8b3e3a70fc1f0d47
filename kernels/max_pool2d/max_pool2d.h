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
/// Gradient: x; an element may be the largest of several windows. Saved: the places, int32; or x
/// and y where cuDNN computes both passes.
Tensor max_pool2d(const Tensor& x, Axes2d kernel, const MaxPool2dOptions& options = {});

/// Who pools on CUDA. kOwn: our kernels. kAutomatic: our kernels too, until something is measured.
/// kCudnn: cuDNN where it can, our kernels for the rest. It can
///   - all dtypes, windows of any size, stride and padding, at any address; not a dilation, not a
///     window that reaches beyond the padding (ceil_mode), not 2^31 elements or more;
///   - backward only where no two windows overlap, so that an element has one term at most:
///     NVIDIA's documentation counts the gradient of max pooling among what comes in no fixed order
///     of additions. A gradient that is scaled, of another dtype or added to something is written
///     to a workspace of x's size first.
/// The forward pass decides for both: the gradient is cuDNN's only if it can do both, whatever is
/// set in between. y is that of kOwn to the bit, but a zero may have the other sign and a NaN other
/// bits. Which one of several equal numbers gets the gradient is not promised, nor that any of
/// several NaN does. Meta counts for a device on which cuDNN has its engines.
/// NOT YET RUN ON A GPU: what is tested without one is that cuDNN 9.19 has plans for all this on
/// sm_80 and sm_90.
enum class MaxPool2dProvider { kAutomatic, kOwn, kCudnn };
/// kCudnn throws kUnsupported where there is no cuDNN or the device is simulated.
void set_max_pool2d_provider(MaxPool2dProvider p);
MaxPool2dProvider max_pool2d_provider() noexcept;

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
  ConstView x{}, y{};  // in place of places: only for cuDNN, with a dx of dy's dtype that is not
                       // scaled or added to anything
};
inline Work work_of(const MaxPool2dForward& a) { return moved(a.x, a.y, a.places); }
inline Work work_of(const MaxPool2dBackward& a) { return moved(a.dy, a.places, a.x, a.y, a.dx); }
extern const Kernel<MaxPool2dForward> max_pool2d_forward;
extern const Kernel<MaxPool2dBackward> max_pool2d_backward;
}  // namespace kernels
}  // namespace accrue

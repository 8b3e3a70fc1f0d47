#pragma once
// Max pooling by cuDNN, one resample operation for each pass, without a copy: dense (N, C, H, W).
// Only for max_pool2d, its tests and its benchmark.
//
// For this layout the library has one engine; the gradient is found from x and y. It has others for
// (N, H, W, C), which write and read an index tensor; our layout is not converted for them. The
// engine accepts more than it can have meant (an index tensor that it has no room for, deprecated
// factors alpha and beta, windows outside of the image), so that not all that it accepts is asked
// of it.
#include <string>
#include <accrue/kernels/max_pool2d/max_pool2d.h>

namespace accrue::kernels::cuda {

bool has_cudnn_pool();

struct PoolProblem {
  bool backward = false;
  DType dtype = DType::kF32;
  Shape x, y;
  WindowAxis height, width;
};
/// Why cuDNN does not compute the pass; "" where it does, once the provider is kCudnn. It depends
/// on the device and the problem, never on addresses. meta is told what a device that has the
/// engine would be told.
std::string cudnn_max_pool2d_refusal(Stream stream, const PoolProblem& p);

/// Enqueues the pass and returns true; or false when the provider or cuDNN does not want it, and
/// nothing was enqueued.
bool cudnn_max_pool2d_forward(Stream stream, const MaxPool2dForward& a);
/// From x and y, whatever the provider is now. Throws kUnsupported with the reason if cuDNN does
/// not compute it, or if dx is of another dtype, scaled or added to something.
void cudnn_max_pool2d_backward(Stream stream, const MaxPool2dBackward& a);

/// Whether cuDNN has a plan for it on the described device (see CudnnTarget). For tests: needs
/// neither a GPU nor a driver.
bool cudnn_has_plan(const PoolProblem& problem, const std::string& device);
}  // namespace accrue::kernels::cuda

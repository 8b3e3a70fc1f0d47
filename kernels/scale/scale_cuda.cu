#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/scaled.cuh>
#include <accrue/kernels/scale/scale.h>

namespace accrue::kernels::cuda {
void scale_forward(Stream stream, const ScaleForward& a) {
  scaled_backward(stream, a.x, {a.y}, a.factor);
}

void scale_backward(Stream stream, const ScaleBackward& a) {
  scaled_backward(stream, a.dy, a.dx, a.factor);
}
}  // namespace accrue::kernels::cuda

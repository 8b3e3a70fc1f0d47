#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/elementwise.cuh>
#include <accrue/kernels/cuda/math.cuh>
#include <accrue/kernels/silu/silu.h>

namespace accrue::kernels::cuda {
namespace {
struct Silu {
  template <class C>
  __device__ __forceinline__ C operator()(C x) const {
    return x * sigmoid(x);
  }
};
struct SiluDerivative {
  template <class C>
  __device__ __forceinline__ C operator()(C x) const {
    const C s = sigmoid(x);
    return s * (C(1) + x * (C(1) - s));
  }
};
}  // namespace

void silu_forward(Stream stream, const SiluForward& a) { unary_forward(stream, a.x, a.y, Silu{}); }

void silu_backward(Stream stream, const SiluBackward& a) {
  unary_backward(stream, a.dy, a.x, a.dx, SiluDerivative{});
}
}  // namespace accrue::kernels::cuda

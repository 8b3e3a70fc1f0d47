#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/elementwise.cuh>
#include <accrue/kernels/relu/relu.h>

namespace accrue::kernels::cuda {
namespace {
struct Relu {
  template <class C>
  __device__ __forceinline__ C operator()(C x) const {
    return x < C(0) ? C(0) : x;
  }
};
struct ReluGradient {
  // A choice, not a product: an infinite dy must not become NaN where nothing passes.
  template <class C>
  __device__ __forceinline__ C operator()(C dy, C y) const {
    return y <= C(0) ? C(0) : dy;
  }
};
}  // namespace

void relu_forward(Stream stream, const ReluForward& a) { unary_forward(stream, a.x, a.y, Relu{}); }

void relu_backward(Stream stream, const ReluBackward& a) {
  unary_gradient(stream, a.dy, a.y, a.dx, ReluGradient{});
}
}  // namespace accrue::kernels::cuda

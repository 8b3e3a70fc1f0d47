#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/elementwise.cuh>
#include <accrue/kernels/cuda/math.cuh>
#include <accrue/kernels/swiglu/swiglu.h>

namespace accrue::kernels::cuda {
namespace {
struct Swiglu {
  template <class C>
  __device__ __forceinline__ C operator()(C gate, C up) const {
    return gate * sigmoid(gate) * up;
  }
};
struct SwigluDerivatives {
  template <class C>
  __device__ __forceinline__ Both<C> operator()(C gate, C up) const {
    const C s = sigmoid(gate);
    return {up * s * (C(1) + gate * (C(1) - s)), gate * s};
  }
};
}  // namespace

void swiglu_forward(Stream stream, const SwigluForward& a) {
  binary_forward(stream, a.gate, a.up, a.y, Swiglu{});
}

void swiglu_backward(Stream stream, const SwigluBackward& a) {
  binary_backward(stream, a.dy, a.gate, a.up, a.dgate, a.dup, SwigluDerivatives{});
}
}  // namespace accrue::kernels::cuda

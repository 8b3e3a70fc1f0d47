#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/elementwise.cuh>
#include <accrue/kernels/cuda/math.cuh>
#include <accrue/kernels/gelu/gelu.h>

namespace accrue::kernels::cuda {
namespace {
// (1 + tanh u) / 2 = sigmoid(2u), and 2u = x (kA + kB x^2).
constexpr double kA = 1.5957691216057308, kB = kA * 0.044715;

template <class C>
__device__ __forceinline__ C tanh_gate(C x) {
  return sigmoid(x * (C(kA) + C(kB) * x * x));
}
struct TanhGelu {
  template <class C>
  __device__ __forceinline__ C operator()(C x) const {
    return x * tanh_gate(x);
  }
};
struct TanhGeluDerivative {
  template <class C>
  __device__ __forceinline__ C operator()(C x) const {
    const C s = tanh_gate(x);
    return s + x * s * (C(1) - s) * (C(kA) + C(3 * kB) * x * x);
  }
};

struct ExactGelu {
  template <class C>
  __device__ __forceinline__ C operator()(C x) const {
    return x * normal(x).cdf;
  }
};
struct ExactGeluDerivative {
  template <class C>
  __device__ __forceinline__ C operator()(C x) const {
    const Normal<C> n = normal(x);
    return n.cdf + x * C(0.3989422804014327) * n.bell;
  }
};
}  // namespace

void gelu_forward(Stream stream, const GeluForward& a) {
  if (a.kind == Gelu::kTanh)
    unary_forward(stream, a.x, a.y, TanhGelu{});
  else
    unary_forward(stream, a.x, a.y, ExactGelu{});
}

void gelu_backward(Stream stream, const GeluBackward& a) {
  if (a.kind == Gelu::kTanh)
    unary_backward(stream, a.dy, a.x, a.dx, TanhGeluDerivative{});
  else
    unary_backward(stream, a.dy, a.x, a.dx, ExactGeluDerivative{});
}
}  // namespace accrue::kernels::cuda

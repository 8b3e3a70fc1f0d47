#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/elementwise.cuh>
#include <accrue/kernels/cuda/math.cuh>
#include <accrue/kernels/gelu/gelu.h>

namespace accrue::kernels::cuda {
namespace {
// x/2 (1 + tanh u) = x sigmoid(2u) with 2u = x (kA + kB x^2)
constexpr double kA = 1.5957691216057308, kB = kA * 0.044715;

struct TanhGelu {
  template <class C>
  __device__ __forceinline__ C operator()(C x) const {
    return x * sigmoid(x * (C(kA) + C(kB) * x * x));
  }
};
struct TanhGeluDerivative {
  template <class C>
  __device__ __forceinline__ C operator()(C x) const {
    const C s = sigmoid(x * (C(kA) + C(kB) * x * x));
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

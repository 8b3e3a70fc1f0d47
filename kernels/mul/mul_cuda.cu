#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/elementwise.cuh>
#include <accrue/kernels/cuda/leading_sum.cuh>
#include <accrue/kernels/mul/mul.h>

namespace accrue::kernels::cuda {
namespace {
struct Product {
  template <class C>
  __device__ __forceinline__ C operator()(C a, C b) const {
    return a * b;
  }
};
struct ProductDerivatives {
  template <class C>
  __device__ __forceinline__ Both<C> operator()(C a, C b) const {
    return {b, a};
  }
};

template <class T, int kV>
struct Products {
  using Real = accumulate_t<T>;
  static constexpr int kVector = kV;
  Elements<T, kV> a, b;
  __device__ __forceinline__ void load(std::int64_t i, int count, Real (&out)[kV]) const {
    Real other[kV];
    a.load(i, count, out);
    b.load(i, count, other);
#pragma unroll
    for (int k = 0; k < kV; ++k) out[k] *= other[k];
  }
};
}  // namespace

void mul_forward(Stream stream, const MulForward& x) {
  binary_forward(stream, x.a, x.b, x.y, Product{});
}

void mul_backward(Stream stream, const MulBackward& x) {
  const std::int64_t n = x.dy.shape.numel();
  if (x.da && x.db && x.period == n)
    return binary_backward(stream, x.dy, x.a, x.b, x.da, x.db, ProductDerivatives{});
  visit_float(x.dy.dtype, [&]<class T>() {
    if (x.da)
      visit_sink<T>(x.da, [&]<class S>() {
        run_repeated<T>(stream, x.dy, x.b, DeviceSink<S>(x.da), Product{});
      });
    if (!x.db) return;
    if (x.period == n) return unary_gradient(stream, x.dy, x.a, x.db, Product{});
    const T* dy = x.dy.data<T>();
    const T* a = x.a.data<T>();
    leading_sum<T>(stream, n, x.period, x.workspace, x.db, 1.0, is_aligned(dy) && is_aligned(a),
                   [=]<int kV>() {
                     return Products<T, kV>{{dy}, {a}};
                   });
  });
}
}  // namespace accrue::kernels::cuda

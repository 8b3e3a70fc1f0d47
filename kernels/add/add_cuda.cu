#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/cuda/leading_sum.cuh>
#include <accrue/kernels/cuda/scaled.cuh>

namespace accrue::kernels::cuda {
namespace {
struct Add {
  template <class C>
  __device__ __forceinline__ C operator()(C a, C b) const {
    return a + b;
  }
};
}  // namespace

void add_forward(Stream stream, const AddForward& x) {
  binary_forward(stream, x.a, x.b, x.y, Add{});
}

void add_backward(Stream stream, const AddBackward& x) {
  if (!x.db) return;
  if (x.period == x.dy.shape.numel()) return scaled_backward(stream, x.dy, x.db, x.factor);
  visit_float(x.dy.dtype, [&]<class T>() {
    const T* dy = x.dy.data<T>();
    leading_sum<T>(stream, x.dy.shape.numel(), x.period, x.workspace, x.db, x.factor,
                   is_aligned(dy), [=]<int kV>() { return Elements<T, kV>{dy}; });
  });
}
}  // namespace accrue::kernels::cuda

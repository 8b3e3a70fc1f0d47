#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/gemm.h>
#include <accrue/kernels/cuda/leading_sum.cuh>
#include <accrue/kernels/linear/linear_products.h>

namespace accrue::kernels::cuda {
void linear_forward(Stream stream, const LinearForward& a) { gemm(stream, linear_y(a)); }

void linear_backward(Stream stream, const LinearBackward& a) {
  if (a.dx) gemm(stream, linear_dx(a));
  if (a.dweight) gemm(stream, linear_dweight(a));
  if (!a.dbias) return;
  visit_float(a.dy.dtype, [&]<class T>() {
    const T* dy = a.dy.data<T>();
    leading_sum<T>(stream, a.dy.shape.numel(), a.weight.shape[0], a.reduce_workspace, a.dbias, 1.0,
                   accrue::cuda::is_aligned(dy), [=]<int kV>() { return Elements<T, kV>{dy}; });
  });
}
}  // namespace accrue::kernels::cuda

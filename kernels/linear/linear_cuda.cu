#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/gemm.h>
#include <accrue/kernels/cuda/leading_sum.cuh>
#include <accrue/kernels/gelu/gelu.h>
#include <accrue/kernels/linear/linear_products.h>

namespace accrue::kernels::cuda {
void gelu_forward(Stream, const GeluForward&);

void linear_forward(Stream stream, const LinearForward& a) {
  if (a.gelu && gemm_gelu(stream, linear_y(a), a.gelu.ptr)) return;
  gemm(stream, linear_y(a));
  if (a.gelu) gelu_forward(stream, {.x = a.y, .y = a.gelu});
}

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

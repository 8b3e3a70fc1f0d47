#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/gemm.h>
#include <accrue/kernels/matmul/matmul_products.h>

namespace accrue::kernels::cuda {
void matmul_forward(Stream stream, const MatmulForward& a) { gemm(stream, matmul_y(a)); }
void matmul_backward(Stream stream, const MatmulBackward& a) {
  if (a.da) gemm(stream, matmul_da(a));
  if (a.db) gemm(stream, matmul_db(a));
}
}  // namespace accrue::kernels::cuda

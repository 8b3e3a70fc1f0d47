#include <accrue/kernels/cpu/gemm.h>
#include <accrue/kernels/matmul/matmul_products.h>
#include <accrue/kernels/cpu/simd_begin.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void matmul_forward(Stream, const MatmulForward& a) { gemm(matmul_y(a)); }
void matmul_backward(Stream, const MatmulBackward& a) {
  if (a.da) gemm(matmul_da(a));
  if (a.db) gemm(matmul_db(a));
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

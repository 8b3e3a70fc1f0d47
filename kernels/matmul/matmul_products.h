#pragma once
// The matrix products of matmul, as every device computes them.
#include <accrue/kernels/gemm.h>
#include <accrue/kernels/matmul/matmul.h>

namespace accrue::kernels {
namespace detail_matmul {
struct Operand {
  const ConstView& matrix;
  bool transpose;
};

// c (..., m, n) = alpha op(a) op(b) + beta c, over the leading dimensions of y.
inline Gemm product(Operand a, Operand b, const Shape& y, std::int64_t m, std::int64_t n,
                    std::int64_t k, const GradSink& c, double alpha, const View& workspace) {
  std::int64_t batch = 1;
  for (int i = 0; i + 2 < y.rank(); ++i) batch *= y[i];
  return {.transpose_a = a.transpose,
          .transpose_b = b.transpose,
          .m = m,
          .n = n,
          .k = k,
          .a = a.matrix.ptr,
          .b = b.matrix.ptr,
          .c = c.dst.ptr,
          .a_type = a.matrix.dtype,
          .b_type = b.matrix.dtype,
          .c_type = c.dst.dtype,
          .lda = a.transpose ? m : k,
          .ldb = b.transpose ? k : n,
          .ldc = n,
          .alpha = alpha * c.alpha,
          .beta = c.beta,
          .batch = batch,
          .batch_stride_a = m * k,
          .batch_stride_b = k * n,
          .batch_stride_c = m * n,
          .workspace = workspace};
}
}  // namespace detail_matmul

/// y = alpha op(a) op(b).
inline Gemm matmul_y(const MatmulForward& a) {
  const Shape& y = a.y.shape;
  return detail_matmul::product({a.a, a.transpose_a}, {a.b, a.transpose_b}, y, y[-2], y[-1],
                                a.a.shape[a.transpose_a ? -2 : -1], {.dst = a.y}, a.alpha,
                                a.workspace);
}
/// da = alpha dy op(b)^T, transposed where a is, into its sink.
inline Gemm matmul_da(const MatmulBackward& a) {
  const Shape& y = a.dy.shape;
  const std::int64_t m = y[-2], n = y[-1], k = a.b.shape[a.transpose_b ? -1 : -2];
  if (a.transpose_a)
    return detail_matmul::product({a.b, a.transpose_b}, {a.dy, true}, y, k, m, n, a.da, a.alpha,
                                  a.workspace);
  return detail_matmul::product({a.dy, false}, {a.b, !a.transpose_b}, y, m, k, n, a.da, a.alpha,
                                a.workspace);
}
/// db = alpha op(a)^T dy, transposed where b is, into its sink.
inline Gemm matmul_db(const MatmulBackward& a) {
  const Shape& y = a.dy.shape;
  const std::int64_t m = y[-2], n = y[-1], k = a.a.shape[a.transpose_a ? -2 : -1];
  if (a.transpose_b)
    return detail_matmul::product({a.dy, true}, {a.a, a.transpose_a}, y, n, k, m, a.db, a.alpha,
                                  a.workspace);
  return detail_matmul::product({a.a, !a.transpose_a}, {a.dy, false}, y, k, n, m, a.db, a.alpha,
                                a.workspace);
}
}  // namespace accrue::kernels

#include <accrue/kernels/cpu/gemm.h>
#include <accrue/kernels/matmul/matmul.h>
#include <accrue/kernels/cpu/simd_begin.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
struct Operand {
  const ConstView& matrix;
  bool transpose;
};

// c (..., m, n) = alpha op(a) op(b) + beta c, over the leading dimensions of dy.
void product(Operand a, Operand b, std::int64_t batch, std::int64_t m, std::int64_t n,
             std::int64_t k, const GradSink& c, double alpha) {
  gemm({.transpose_a = a.transpose,
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
        .batch_stride_c = m * n});
}

std::int64_t batch_of(const Shape& s) {
  std::int64_t n = 1;
  for (int i = 0; i + 2 < s.rank(); ++i) n *= s[i];
  return n;
}
}  // namespace

void matmul_forward(Stream, const MatmulForward& a) {
  const Shape& y = a.y.shape;
  product({a.a, a.transpose_a}, {a.b, a.transpose_b}, batch_of(y), y[-2], y[-1],
          a.a.shape[a.transpose_a ? -2 : -1], {.dst = a.y}, a.alpha);
}

void matmul_backward(Stream, const MatmulBackward& a) {
  const Shape& y = a.dy.shape;
  const std::int64_t batch = batch_of(y), m = y[-2], n = y[-1];
  if (a.da) {
    const std::int64_t k = a.b.shape[a.transpose_b ? -1 : -2];
    if (a.transpose_a)
      product({a.b, a.transpose_b}, {a.dy, true}, batch, k, m, n, a.da, a.alpha);
    else
      product({a.dy, false}, {a.b, !a.transpose_b}, batch, m, k, n, a.da, a.alpha);
  }
  if (a.db) {
    const std::int64_t k = a.a.shape[a.transpose_a ? -2 : -1];
    if (a.transpose_b)
      product({a.dy, true}, {a.a, a.transpose_a}, batch, n, k, m, a.db, a.alpha);
    else
      product({a.a, !a.transpose_a}, {a.dy, false}, batch, k, n, m, a.db, a.alpha);
  }
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

#pragma once
// The matrix products of linear, as every device computes them.
#include <accrue/kernels/gemm.h>
#include <accrue/kernels/linear/linear.h>

namespace accrue::kernels {

/// y = x weight^T + bias.
inline Gemm linear_y(const LinearForward& a) {
  const std::int64_t out = a.weight.shape[0], in = a.weight.shape[1];
  const DType t = a.y.dtype;
  return {.transpose_b = true,
          .m = a.y.shape.rows(),
          .n = out,
          .k = in,
          .a = a.x.ptr,
          .b = a.weight.ptr,
          .c = a.y.ptr,
          .a_type = t,
          .b_type = t,
          .c_type = t,
          .lda = in,
          .ldb = in,
          .ldc = out,
          .bias = a.bias.ptr,
          .bias_type = t,
          .workspace = a.workspace};
}
/// dx = dy weight, into its sink.
inline Gemm linear_dx(const LinearBackward& a) {
  const std::int64_t out = a.weight.shape[0], in = a.weight.shape[1];
  return {.m = a.dy.shape.rows(),
          .n = in,
          .k = out,
          .a = a.dy.ptr,
          .b = a.weight.ptr,
          .c = a.dx.dst.ptr,
          .a_type = a.dy.dtype,
          .b_type = a.dy.dtype,
          .c_type = a.dx.dst.dtype,
          .lda = out,
          .ldb = in,
          .ldc = in,
          .alpha = a.dx.alpha,
          .beta = a.dx.beta,
          .workspace = a.workspace};
}
/// dweight = dy^T x, into its sink.
inline Gemm linear_dweight(const LinearBackward& a) {
  const std::int64_t out = a.weight.shape[0], in = a.weight.shape[1];
  return {.transpose_a = true,
          .m = out,
          .n = in,
          .k = a.dy.shape.rows(),
          .a = a.dy.ptr,
          .b = a.x.ptr,
          .c = a.dweight.dst.ptr,
          .a_type = a.dy.dtype,
          .b_type = a.dy.dtype,
          .c_type = a.dweight.dst.dtype,
          .lda = out,
          .ldb = in,
          .ldc = in,
          .alpha = a.dweight.alpha,
          .beta = a.dweight.beta,
          .workspace = a.workspace};
}
}  // namespace accrue::kernels

#pragma once
// The matrix products of a tile, the same on every device: `groups` times weight (K, C R S) of one
// group. `pixels` is the width of the tile's matrices.
#include <accrue/kernels/conv2d/conv2d.h>
#include <accrue/kernels/gemm.h>

namespace accrue::kernels {

/// product = weight columns
inline Gemm forward_product(const Conv2dForward& a, std::int64_t pixels) {
  const std::int64_t out = a.y.shape[1] / a.groups;
  const std::int64_t in = a.weight.shape[1] * a.weight.shape[2] * a.weight.shape[3];
  return {.m = out,
          .n = pixels,
          .k = in,
          .a = a.weight.ptr,
          .b = a.columns.ptr,
          .c = a.product.ptr,
          .a_type = a.weight.dtype,
          .b_type = a.columns.dtype,
          .c_type = a.product.dtype,
          .lda = in,
          .ldb = pixels,
          .ldc = pixels,
          .batch = a.groups,
          .batch_stride_a = out * in,
          .batch_stride_b = in * pixels,
          .batch_stride_c = out * pixels,
          .workspace = a.workspace};
}
/// columns = weight^T gathered
inline Gemm input_product(const Conv2dBackwardInput& a, std::int64_t pixels) {
  const std::int64_t out = a.dy.shape[1] / a.groups;
  const std::int64_t in = a.weight.shape[1] * a.weight.shape[2] * a.weight.shape[3];
  return {.transpose_a = true,
          .m = in,
          .n = pixels,
          .k = out,
          .a = a.weight.ptr,
          .b = a.gathered.ptr,
          .c = a.columns.ptr,
          .a_type = a.weight.dtype,
          .b_type = a.gathered.dtype,
          .c_type = a.columns.dtype,
          .lda = in,
          .ldb = pixels,
          .ldc = pixels,
          .batch = a.groups,
          .batch_stride_a = out * in,
          .batch_stride_b = out * pixels,
          .batch_stride_c = in * pixels,
          .workspace = a.workspace};
}
/// sum or dweight = gathered columns^T; with `more` added to what is there. No pixels: only beta.
inline Gemm weight_product(const Conv2dBackwardWeight& a, std::int64_t pixels, bool more) {
  const View& to = a.sum ? a.sum : a.dweight.dst;
  const Shape& weight = a.dweight.dst.shape;
  const std::int64_t out = weight[0] / a.groups, in = weight[1] * weight[2] * weight[3];
  return {.transpose_b = true,
          .m = out,
          .n = in,
          .k = pixels,
          .a = a.gathered.ptr,
          .b = a.columns.ptr,
          .c = to.ptr,
          .a_type = a.gathered.dtype,
          .b_type = a.columns.dtype,
          .c_type = to.dtype,
          .lda = pixels,
          .ldb = pixels,
          .ldc = in,
          .alpha = a.sum ? 1.0f : a.dweight.alpha,
          .beta = more    ? 1.0f
                  : a.sum ? 0.0f
                          : a.dweight.beta,
          .batch = a.groups,
          .batch_stride_a = out * pixels,
          .batch_stride_b = in * pixels,
          .batch_stride_c = out * in,
          .workspace = a.workspace};
}
}  // namespace accrue::kernels

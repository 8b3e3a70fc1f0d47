#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// Fully connected layer, as PyTorch's torch.nn.functional.linear: y = x weight^T + bias.
///   x (..., in), weight (out, in), bias (out) or undefined -> y (..., out), all of one floating
///   dtype. Sums run in float32 (float64 for float64) and are rounded once.
/// Gradients, with the leading dimensions of x flattened to rows:
///   dx = dy weight    dweight = dy^T x    dbias = sum of dy over the rows
/// each straight into its sink (float32 parameter gradients take no detour through bfloat16).
/// No rows: y is empty, dweight and dbias are 0. x is kept for backward only if weight is trained.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

namespace kernels {
struct LinearForward {
  ConstView x, weight, bias{};  // bias may be empty
  View y;
  View workspace{};  // of gemm_workspace()
};
/// Sinks are written in the order dx, dweight, dbias.
struct LinearBackward {
  ConstView dy, x{}, weight;  // x may be empty without dweight
  GradSink dx{}, dweight{}, dbias{};
  View workspace{}, reduce_workspace{};  // of gemm_workspace(); CUDA: of reduce_workspace()
};
inline Work work_of(const LinearForward& a) {
  return {product_flops(a.x.shape.rows(), a.weight.shape[0], a.weight.shape[1]),
          moved(a.x, a.weight, a.bias, a.y).bytes};
}
inline Work work_of(const LinearBackward& a) {
  return {product_flops(a.dy.shape.rows(), a.weight.shape[0], a.weight.shape[1]) *
              ((a.dx ? 1 : 0) + (a.dweight ? 1 : 0)),
          moved(a.dy, a.x, a.weight, a.dx, a.dweight, a.dbias).bytes};
}
extern const Kernel<LinearForward> linear_forward;
extern const Kernel<LinearBackward> linear_backward;
}  // namespace kernels
}  // namespace accrue

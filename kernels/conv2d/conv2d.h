#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/window.h>
#include <accrue/kernels/work.h>

namespace accrue {

struct Conv2dOptions {
  Axes2d stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
};

/// Two-dimensional cross-correlation, as PyTorch's torch.nn.functional.conv2d:
///   y[n,k,p,q] = bias[k] + sum over c, r, s of
///                weight[k,c,r,s] x[n, g C/groups + c, p stride + r dilation - padding, ...]
/// with g the group of k, and 0 read outside of x.
///   x (N, C, H, W), weight (K, C / groups, R, S), bias (K) or undefined -> y (N, K, P, Q),
///   P = floor((H + 2 padding - dilation (R - 1) - 1) / stride) + 1, all of one floating dtype.
/// C and K are multiples of groups; a window larger than the padded image is an error. Sums run in
/// float32 (float64 for float64) and are rounded once; those of the bias gradient in float64, on
/// CUDA with up to 8 neighbours added in float32 before.
/// Gradients: x, weight, bias, each straight into its sink. No images: dweight and dbias are 0.
///
/// Computed as matrix products with the windows of x unrolled to columns (Chellapilla, Puri, Simard
/// 2006, "High performance convolutional neural networks for document processing"), tile by tile:
/// the workspace is bounded (conv2d/tiles.h). The cut depends on shapes only.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv2dOptions& options = {});

/// Who convolves on CUDA. kOwn: our kernels. kCudnn: cuDNN wherever it can, dense and with our
/// rounding (not: bfloat16 with a float32 weight gradient), our kernels for the rest. kAutomatic:
/// kCudnn where cuDNN 9.8 or later is installed and the device is a real one.
/// float32 uses the tensor cores (TF32) only as set_matmul_precision() allows it.
enum class Conv2dProvider { kAutomatic, kOwn, kCudnn };
/// kCudnn throws kUnsupported where there is no cuDNN or the device is simulated.
void set_conv2d_provider(Conv2dProvider p);
Conv2dProvider conv2d_provider() noexcept;

namespace kernels {
struct Conv2dForward {
  ConstView x, weight, bias{};  // bias may be empty
  View y;
  WindowAxis height, width;
  std::int64_t groups = 1;
  View columns, product;  // workspaces of x's dtype and the accumulation type
  View workspace{};       // of the products: gemm_workspace()
};
struct Conv2dBackwardInput {
  ConstView dy, weight;
  GradSink dx;
  WindowAxis height, width;
  std::int64_t groups = 1;
  View columns, gathered;  // workspaces of the accumulation type and dy's dtype
  View workspace{};
};
/// Sinks are written in the order dweight, dbias.
struct Conv2dBackwardWeight {
  ConstView dy, x{};  // x may be empty without dweight
  GradSink dweight{}, dbias{};
  WindowAxis height, width;
  std::int64_t groups = 1;
  View columns{}, gathered{};  // workspaces of x's dtype; needed with dweight
  View workspace{};
  View sum{};  // float32, the shape of weight; needed if dweight is bfloat16
};
inline double conv2d_flops(const Shape& y, const Shape& weight) {
  return product_flops(y.numel(), 1, weight[1] * weight[2] * weight[3]);
}
inline Work work_of(const Conv2dForward& a) {
  return {conv2d_flops(a.y.shape, a.weight.shape), moved(a.x, a.weight, a.bias, a.y).bytes};
}
inline Work work_of(const Conv2dBackwardInput& a) {
  return {conv2d_flops(a.dy.shape, a.weight.shape), moved(a.dy, a.weight, a.dx).bytes};
}
inline Work work_of(const Conv2dBackwardWeight& a) {
  return {a.dweight ? conv2d_flops(a.dy.shape, a.dweight.dst.shape) : 0.0,
          moved(a.dy, a.x, a.dweight, a.dbias).bytes};
}
extern const Kernel<Conv2dForward> conv2d_forward;
extern const Kernel<Conv2dBackwardInput> conv2d_backward_input;
extern const Kernel<Conv2dBackwardWeight> conv2d_backward_weight;
}  // namespace kernels
}  // namespace accrue

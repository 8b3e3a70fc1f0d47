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

/// gelu(linear(x, weight, bias), Gelu::kTanh), with the same tape, memory for backward and
/// gradients as these two.
/// On CUDA the product may write its GELU itself (see GeluEpilogue), which saves reading its result
/// once. The last bits of the GELU then differ from those of two steps.
Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// Whether linear_gelu() on CUDA leaves the GELU to the matrix product.
///   kOn         where it can: bfloat16, `in` and `out` multiples of 8 and not 0, x, weight and
///               bias aligned to 16 bytes. The number of rows never decides.
///   kOff        never
///   kAutomatic  kOn on devices of compute capability 9.0 and newer, kOff on others: a rule,
///               not a measurement. On older ones cuBLASLt is reported to take a kernel that is
///               slower than two steps.
/// Two steps also where cuBLASLt has no algorithm for the product, and on other devices.
enum class GeluEpilogue { kAutomatic, kOff, kOn };
void set_gelu_epilogue(GeluEpilogue e) noexcept;
GeluEpilogue gelu_epilogue() noexcept;

namespace kernels {
struct LinearForward {
  ConstView x, weight, bias{};  // bias may be empty
  View y;
  View workspace{};  // of gemm_workspace()
  View gelu{};       // tanh GELU of y, its shape and dtype; may be empty
};
/// Sinks are written in the order dx, dweight, dbias.
struct LinearBackward {
  ConstView dy, x{}, weight;  // x may be empty without dweight
  GradSink dx{}, dweight{}, dbias{};
  View workspace{}, reduce_workspace{};  // of gemm_workspace(); CUDA: of reduce_workspace()
};
inline Work work_of(const LinearForward& a) {
  return {product_flops(a.x.shape.rows(), a.weight.shape[0], a.weight.shape[1]),
          moved(a.x, a.weight, a.bias, a.y, a.gelu).bytes};
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

#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

struct MatmulOptions {
  bool transpose_a = false, transpose_b = false;  // of the last two dimensions
  double alpha = 1.0;
};

/// Batched matrix product: y = alpha op(a) op(b), op being the transpose of the last two dimensions
/// where asked for (BLAS gemm, PyTorch's torch.bmm).
///   a (..., M, K), or (..., K, M) with transpose_a;   b (..., K, N), or (..., N, K) with
///   transpose_b;   -> y (..., M, N). One floating dtype, rank 2 to 6, equal leading dimensions.
/// Sums run in float32 (float64 for float64) and are rounded once. K = 0: y is 0.
/// Gradients of both: with d = alpha dy, da = d op(b)^T and db = op(a)^T d, each transposed where
/// its input was.
Tensor matmul(const Tensor& a, const Tensor& b, const MatmulOptions& options = {});

namespace kernels {
struct MatmulForward {
  ConstView a, b;
  View y;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1.0;
  View workspace{};  // of gemm_workspace()
};
/// Sinks are written in the order da, db.
struct MatmulBackward {
  ConstView dy, a{}, b{};  // a may be empty without db, b without da
  GradSink da{}, db{};
  bool transpose_a = false, transpose_b = false;
  double alpha = 1.0;
  View workspace{};  // of gemm_workspace()
};
inline Work work_of(const MatmulForward& a) {
  return {product_flops(a.y.shape.rows(), a.y.shape.cols(), a.a.shape[a.transpose_a ? -2 : -1]),
          moved(a.a, a.b, a.y).bytes};
}
inline Work work_of(const MatmulBackward& a) {
  const std::int64_t k = a.a   ? a.a.shape[a.transpose_a ? -2 : -1]
                         : a.b ? a.b.shape[a.transpose_b ? -1 : -2]
                               : 0;
  return {
      product_flops(a.dy.shape.rows(), a.dy.shape.cols(), k) * ((a.da ? 1 : 0) + (a.db ? 1 : 0)),
      moved(a.dy, a.a, a.b, a.da, a.db).bytes};
}
extern const Kernel<MatmulForward> matmul_forward;
extern const Kernel<MatmulBackward> matmul_backward;
}  // namespace kernels
}  // namespace accrue

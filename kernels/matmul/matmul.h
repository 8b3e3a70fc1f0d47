#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>

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
extern const Kernel<MatmulForward> matmul_forward;
extern const Kernel<MatmulBackward> matmul_backward;
}  // namespace kernels
}  // namespace accrue

#pragma once
// The matrix product: what every device computes, and the settings of CUDA's.
#include <cstdint>
#include <accrue/core/tensor.h>

namespace accrue {

/// How float32 matrix products multiply on CUDA; sums run in float32 in every mode. Other dtypes
/// and the CPU are always kHighest. The names are PyTorch's (set_float32_matmul_precision).
enum class MatmulPrecision {
  kHighest,  // float32, 24 significant bits. The default
  kHigh,     // TF32: operands are rounded to 11 significant bits
  kMedium,   // bfloat16: operands may be rounded to 8 significant bits
};
void set_matmul_precision(MatmulPrecision p) noexcept;
MatmulPrecision matmul_precision() noexcept;

namespace kernels {

/// C = alpha op(A) op(B) + beta C + bias, `batch` times. All row-major:
///   op(A) (m, k): A is (m, k), or (k, m) when transpose_a;   op(B) (k, n): B is (k, n), or (n, k)
///   when transpose_b;   C (m, n);   bias (n) or null, added to every row.
/// lda, ldb and ldc are elements from one row of the stored matrix to the next, the batch strides
/// elements from one matrix to the next. C overlaps neither A nor B.
/// Sums run in float32, or all is float64. beta 0 does not read C (it may hold NaN). k 0:
/// C = beta C + bias. Which dtypes go together is each device's: see its gemm().
struct Gemm {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  DType a_type = DType::kF32, b_type = DType::kF32, c_type = DType::kF32;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  double alpha = 1.0, beta = 0.0;
  const void* bias = nullptr;
  DType bias_type = DType::kF32;
  std::int64_t batch = 1;
  std::int64_t batch_stride_a = 0, batch_stride_b = 0, batch_stride_c = 0;
  View workspace{};  // from gemm_workspace(); may be empty
};

/// Temporary memory for the products of one op call: undefined on the CPU, gemm_workspace_bytes()
/// on CUDA. The op allocates it, so that its budget and a meta device that plans cuda count it.
Tensor gemm_workspace(Device device);
/// 32 MiB unless set. 0: products do without, and may be slower. Results may differ in their last
/// bits between sizes.
void set_gemm_workspace_bytes(std::int64_t bytes);
std::int64_t gemm_workspace_bytes() noexcept;

/// CUDA: times the library's best few algorithms once for each new shape and takes the fastest. Off
/// by default: which one wins, and with it the last bits, can change from run to run. The first
/// value comes from the environment variable ACCRUE_GEMM_TUNE (1: on).
void set_gemm_tuning(bool on) noexcept;
bool gemm_tuning() noexcept;
}  // namespace kernels
}  // namespace accrue

#pragma once
// The matrix product of the CPU. Every op that multiplies matrices on the CPU comes here.
#include <cstdint>
#include <accrue/core/types.h>

namespace accrue::kernels {

/// C = alpha op(A) op(B) + beta C + bias, `batch` times. All row-major:
///   op(A) (m, k): A is (m, k), or (k, m) when transpose_a;   op(B) (k, n): B is (k, n), or (n, k)
///   when transpose_b;   C (m, n);   bias (n) or null, added to every row.
/// lda, ldb and ldc are elements from one row of the stored matrix to the next, the batch strides
/// elements from one matrix to the next. C overlaps neither A nor B.
/// Dtypes: A and B are float32 or bfloat16 in any mix, C is float32 or bfloat16, sums run in
/// float32; or A, B and C are all float64. The bias is float32 or bfloat16 (float64).
/// beta 0 does not read C (it may hold NaN). k 0: C = beta C + bias.
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
};

/// Runs on the threads of parallel_for, over tiles of C; the sum over k is never cut between
/// threads: the same bits for any number of threads. Inside a parallel_for it runs in the calling
/// thread.
///
/// With our own kernel an element of C has the same bits wherever it stands: they depend on its row
/// of op(A), its column of op(B), k, alpha, beta and the instruction set, not on m, n, batch or the
/// cut into tiles. (oneDNN promises less: tiles of a size that depends on the shape alone.)
///
/// Memory: each thread keeps one buffer of 3.6 MiB for packed tiles until it ends. It is
/// taken from the system at the thread's first product, not from the Allocator, and never grows, so
/// a training loop allocates nothing here after its first step.
void gemm(const Gemm& g);

/// Who computes a tile. Automatic: oneDNN for bfloat16 operands on processors with AMX, our own
/// kernel for everything else (bfloat16 is then widened while it is packed), because its bits stay
/// when the batch is cut differently.
/// kOneDnn uses oneDNN wherever it can: float32 through dnnl_sgemm, other dtypes where the
/// processor has the instructions. kOneDnnPrimitive: float32 through oneDNN's matmul primitive too
/// (the path bfloat16 takes), for tests.
enum class GemmProvider { kAutomatic, kOwn, kOneDnn, kOneDnnPrimitive };

/// For tests and benchmarks. The first value comes from the environment variable ACCRUE_GEMM: own,
/// onednn, onednn_primitive, anything else: automatic. Without oneDNN in the build the last two
/// throw kUnsupported (from the environment: mean automatic).
void set_gemm_provider(GemmProvider p);
GemmProvider gemm_provider() noexcept;
bool has_onednn() noexcept;
}  // namespace accrue::kernels

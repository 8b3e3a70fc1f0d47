#pragma once
// The matrix product of the CPU. Every op that multiplies matrices on the CPU comes here.
#include <accrue/kernels/gemm.h>

namespace accrue::kernels {

/// Dtypes: A and B are float32 or bfloat16 in any mix, C is float32 or bfloat16; or A, B and C are
/// all float64. The bias is float32 or bfloat16 (float64). The workspace is not used.
///
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

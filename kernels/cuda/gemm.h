#pragma once
// The matrix product of CUDA, by cuBLASLt. Every op that multiplies matrices on CUDA comes here.
#include <accrue/kernels/gemm.h>

namespace accrue::kernels::cuda {

/// Enqueues the product on the stream; never waits (but see set_gemm_tuning).
///
/// Dtypes: A and B are equal. float32 -> float32; bfloat16 -> bfloat16 or float32; float64 ->
/// float64. The bias is of any dtype with float64 only beside float64. Anything else throws
/// kUnsupported: cast an operand first. m, n, k and the batch strides fit cuBLASLt: m, n and k are
/// below 2^31.
///
/// The bits of the result depend on the whole shape, the leading dimensions and the alignment of
/// the matrices, the device and the versions of driver and library, not on time: the first
/// algorithm of the library's heuristics is taken, and only from those whose partial sums (split k)
/// are added in a fixed order and in the type that sums run in.
///
/// A bias is fused into the product if it has the dtype of A, B and C, is aligned to 16 bytes and
/// is not float64. Otherwise C = beta C + bias is written first, in its dtype, and the product is
/// added to it: the same result where beta is 0 and the bias has the dtype of C (bias and product
/// are rounded together), one more rounding where not.
///
/// The workspace must be aligned to 256 bytes and belongs to the stream until the product is done.
/// Descriptors and algorithms are kept by shape, the latest kGemmCacheEntries of them per device.
/// Safe from any thread.
void gemm(Stream stream, const Gemm& g);

/// Enqueues C = op(A) op(B) + bias and `gelu`, laid out like C, = tanh GELU of C, as one product.
/// alpha is 1, beta 0, batch 1. Whether the GELU is taken before or after C is rounded is the
/// library's choice. False, and nothing was enqueued, where
///   - a matrix or the bias is not bfloat16; m, n or k is 0
///   - n or a leading dimension is no multiple of 8, or an address no multiple of 16 bytes
///   - the library has no algorithm.
/// But for the last, the number of rows m > 0 decides nothing.
bool gemm_gelu(Stream stream, const Gemm& g, void* gelu);
/// GeluEpilogue::kAutomatic: whether the device's compute capability is 9.0 or newer.
bool gemm_gelu_pays(Device device);

inline constexpr int kGemmCacheEntries = 1024;
struct GemmCacheStats {
  std::int64_t entries = 0, hits = 0, misses = 0;
};
GemmCacheStats gemm_cache_stats(Device device);
/// Forgets the kept shapes and counts of a device. For tests and after a change of its settings.
void clear_gemm_cache(Device device);

/// C = beta C + bias, without a product: the bias may be null. For gemm() itself.
void gemm_scale(Stream stream, const Gemm& g);
}  // namespace accrue::kernels::cuda

#pragma once
// What gemm.cpp and its kernels share. Internal.
#include <cstddef>
#include <accrue/kernels/cpu/gemm.h>

namespace accrue::kernels {

/// Largest tile of C, for 4-byte and 8-byte accumulation; see gemm.cpp for how a product is cut.
inline constexpr std::int64_t kTileRows = 576;
constexpr std::int64_t tile_columns(std::int64_t element_bytes) { return 3072 / element_bytes; }
/// Rows of packed A, and steps of k, that are in work at a time.
constexpr std::int64_t packed_rows(std::int64_t element_bytes) { return 768 / element_bytes; }
inline constexpr std::int64_t kPackedSteps = 512;
/// Tiles begin at multiples of these, which every micro-kernel's height and width divides.
inline constexpr std::int64_t kRowUnit = 12, kColumnUnit = 32;

/// Bytes: packed A, packed B, float32 sums of a bfloat16 tile, bias. The same for both widths.
inline constexpr std::int64_t kPackedABytes = packed_rows(1) * kPackedSteps;
inline constexpr std::int64_t kPackedBBytes = tile_columns(1) * kPackedSteps;
inline constexpr std::int64_t kSumBytes = kTileRows * tile_columns(1);
inline constexpr std::int64_t kBiasBytes = tile_columns(1);
inline constexpr std::int64_t kScratchBytes =
    kPackedABytes + kPackedBBytes + kSumBytes + kBiasBytes;

/// This thread's buffer of kScratchBytes, aligned to 64. Content undefined.
std::byte* gemm_scratch();

namespace portable {
void gemm_tile(const Gemm& g);
}
namespace avx2 {
void gemm_tile(const Gemm& g);
}
namespace avx512 {
void gemm_tile(const Gemm& g);
}

/// One tile by oneDNN in the calling thread. False: it has no fast way for these dtypes on this
/// processor, and nothing was done.
bool onednn_gemm_tile(const Gemm& g, bool primitive);
bool onednn_has_bfloat16();
}  // namespace accrue::kernels

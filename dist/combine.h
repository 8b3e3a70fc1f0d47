#pragma once
// The arithmetic of collectives on host memory.
#include <cstdint>
#include <span>
#include <accrue/core/communicator.h>

namespace accrue::dist {

/// out[i] = op over the parts' element i, in the order of the parts, rounded once: float32 and
/// bfloat16 are summed in float32, float64 in float64, integers modulo 2^n. kMax and kMin: a NaN in
/// any part stays a NaN. kBitOr is for integers. `out` may be one of the parts. Uses one thread.
void combine(ReduceOp op, DType dtype, std::span<const void* const> parts, void* out,
             std::int64_t count);
}  // namespace accrue::dist

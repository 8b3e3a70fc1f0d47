#include <accrue/kernels/cpu/segments.h>
#include <accrue/kernels/global_norm/global_norm.h>

namespace accrue::kernels {
ACCRUE_KERNEL(global_norm, GlobalNorm);

std::int64_t global_norm_workspace(std::span<const Segment> segments) {
  return segment_chunks(segments, kNormChunk);
}
}  // namespace accrue::kernels

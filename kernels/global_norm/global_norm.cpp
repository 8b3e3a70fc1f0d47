#include <accrue/kernels/global_norm/global_norm.h>

namespace accrue::kernels {
ACCRUE_KERNEL(square_sums, SquareSums);
ACCRUE_KERNEL(global_norm, GlobalNorm);

std::int64_t norm_pieces(std::span<const Segment> segments) {
  std::int64_t n = 0;
  for (const Segment& s : segments) n += norm_pieces(s);
  return n;
}
}  // namespace accrue::kernels

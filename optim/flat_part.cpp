#include <algorithm>
#include <accrue/optim/flat_part.h>

namespace accrue::optim {

void clip_segments(std::span<const kernels::Segment> segments, std::int64_t first, std::int64_t end,
                   std::vector<kernels::Segment>& out) {
  out.clear();
  const auto begin = std::partition_point(
      segments.begin(), segments.end(),
      [first](const kernels::Segment& s) { return s.offset + s.size <= first; });
  for (auto s = begin; s != segments.end() && s->offset < end; ++s) {
    const std::int64_t from = std::max(s->offset, first), to = std::min(s->offset + s->size, end);
    if (from < to) out.push_back({from - first, to - from, s->decay, s->before + from - s->offset});
  }
}
}  // namespace accrue::optim

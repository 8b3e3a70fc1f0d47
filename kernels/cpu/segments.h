#pragma once
// Loops over the segments of a flat block, cut into chunks. The cut depends on the segments only.
#include <algorithm>
#include <span>
#include <accrue/core/parallel.h>
#include <accrue/kernels/step_state.h>

namespace accrue::kernels {

/// Chunks of `chunk` elements in all segments; each segment begins a new one.
inline std::int64_t segment_chunks(std::span<const Segment> segments, std::int64_t chunk) {
  std::int64_t n = 0;
  for (const Segment& s : segments) n += chunk_count(s.size, chunk);
  return n;
}

/// body(segment, number, offset, size) for every chunk: its number over all segments, and the
/// elements [offset, offset + size) of the flat block. `grain` chunks in a row run in one thread.
template <class Body>
void for_each_chunk(std::span<const Segment> segments, std::int64_t chunk, std::int64_t grain,
                    Body&& body) {
  parallel_for(segment_chunks(segments, chunk), grain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t first = 0;  // the number of the segment's first chunk
    for (const Segment& s : segments) {
      if (first >= end) break;
      const std::int64_t after = first + chunk_count(s.size, chunk);
      for (std::int64_t c = std::max(begin, first); c < std::min(end, after); ++c) {
        const std::int64_t at = (c - first) * chunk;
        body(s, c, s.offset + at, std::min(chunk, s.size - at));
      }
      first = after;
    }
  });
}
}  // namespace accrue::kernels

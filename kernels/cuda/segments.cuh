#pragma once
// Segments of a flat block as kernel arguments: hundreds of tiny parameters in a few launches,
// with nothing to copy to the device.
#include <span>
#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/step_state.h>

namespace accrue::kernels::cuda {

/// As many segments as fit into the 4 KB of a launch, each cut into blocks of the same size.
struct SegmentBatch {
  static constexpr int kSegments = 160;
  std::int64_t offset[kSegments], size[kSegments];
  std::int32_t first_block[kSegments];  // of each segment in this launch
  std::int32_t tag[kSegments];          // what the op wants to know of a segment
  std::int64_t before = 0;              // of the first segment; all others have 0
  int count = 0;

  /// What one CUDA block works on: elements [begin, begin + size) of the flat block.
  struct Part {
    std::int64_t begin;
    int size;
    int tag, number;  // of the segment; of the block in it
    std::int64_t before;
  };
  __device__ __forceinline__ Part part(int per_block) const {
    const int block = static_cast<int>(blockIdx.x);
    int s = 0;
    for (int end = count; end - s > 1;) {
      const int middle = (s + end) / 2;
      (first_block[middle] <= block ? s : end) = middle;
    }
    const int number = block - first_block[s];
    const std::int64_t at = static_cast<std::int64_t>(number) * per_block, left = size[s] - at;
    return {offset[s] + at, left < per_block ? static_cast<int>(left) : per_block, tag[s], number,
            s == 0 ? before : 0};
  }
};
static_assert(sizeof(SegmentBatch) <= 3856, "a launch takes 4 KB of arguments");

/// run(batch, blocks) for all segments that are not empty, in order; tag(segment) is called once
/// for each of them.
template <class Tag, class Run>
void for_each_batch(std::span<const Segment> segments, int per_block, Tag&& tag, Run&& run) {
  SegmentBatch batch;
  std::int64_t blocks = 0;
  const auto flush = [&] {
    if (batch.count > 0) run(batch, dim3(accrue::cuda::blocks_for(blocks, 1)));
    batch.count = 0;
    blocks = 0;
  };
  for (const Segment& s : segments) {
    if (s.size <= 0) continue;
    if (batch.count == SegmentBatch::kSegments) flush();
    if (batch.count == 0) batch.before = s.before;
    batch.offset[batch.count] = s.offset;
    batch.size[batch.count] = s.size;
    batch.first_block[batch.count] = static_cast<std::int32_t>(blocks);
    batch.tag[batch.count] = static_cast<std::int32_t>(tag(s));
    ++batch.count;
    blocks += accrue::cuda::blocks_for(s.size, per_block);
  }
  flush();
}

/// Whether p may be accessed by `bytes` at once (16, or a smaller power of two).
template <class T>
__device__ __forceinline__ bool aligned_to(const T* p, unsigned bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}
}  // namespace accrue::kernels::cuda

#pragma once
#include <span>
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// dst = beta * dst + alpha * src. With beta 0 dst is not read (it may hold NaN).
struct AccumulateItem {
  View dst;       // float32 or float64
  ConstView src;  // any floating dtype, as many elements; may be dst itself
  float alpha = 1.0f, beta = 1.0f;
};

/// Adds many tensors into others in one pass: gradients of micro-batches into the float32 block
/// that lasts over the window. Computes in dst's dtype, so bfloat16 sources lose nothing on the
/// way. Everything lies on `device`. No two destinations may overlap.
void accumulate(std::span<const AccumulateItem> items, Device device = default_device());

namespace kernels {
struct Accumulate {
  std::span<const AccumulateItem> items;
  /// Where the chunks of each item begin, and their total behind the last: items.size() + 1
  /// numbers.
  std::span<const std::int64_t> first_chunk;
  static constexpr std::int64_t kChunk = 16384;  // elements
};
inline Work work_of(const Accumulate& a) {
  Work w;
  for (const AccumulateItem& i : a.items)
    w.bytes += moved(i.src, GradSink{i.dst, i.alpha, i.beta}).bytes;
  return w;
}
extern const Kernel<Accumulate> accumulate;
}  // namespace kernels
}  // namespace accrue

#include <vector>
#include <accrue/core/parallel.h>
#include <accrue/kernels/accumulate/accumulate.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(accumulate, Accumulate);
}  // namespace kernels

void accumulate(std::span<const AccumulateItem> items, Device device) {
  thread_local std::vector<std::int64_t> first;  // keeps its memory: no allocation per step
  first.assign(1, 0);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const AccumulateItem& item = items[i];
    ACCRUE_CHECK(item.dst && item.src, "accumulate: item ", i, ": ", item.dst ? "src" : "dst",
                 " is undefined");
    ACCRUE_CHECK(item.dst.dtype == DType::kF32 || item.dst.dtype == DType::kF64,
                 "accumulate: item ", i, ": dst must be float32 or float64, got ", item.dst.dtype);
    ACCRUE_CHECK(is_floating(item.src.dtype), "accumulate: item ", i,
                 ": src must be of floating dtype, got ", item.src.dtype);
    ACCRUE_CHECK_SHAPE(item.dst.shape.numel() == item.src.shape.numel(), "accumulate: item ", i,
                       ": dst is ", item.dst.shape, ", src ", item.src.shape,
                       "; they must have as many elements");
    first.push_back(first.back() +
                    chunk_count(item.dst.shape.numel(), kernels::Accumulate::kChunk));
  }
  kernels::accumulate(current_stream(device), {.items = items, .first_chunk = first});
}
}  // namespace accrue

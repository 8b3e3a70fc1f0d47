#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/vector.cuh>
#include <accrue/kernels/accumulate/accumulate.h>
#include <accrue/kernels/cuda/item_table.cuh>

namespace accrue::kernels::cuda {
using namespace accrue::cuda;
namespace {
constexpr int kThreads = 256, kChunk = 8192;  // a chunk is the work of one block

struct Item {
  void* dst;
  const void* src;
  std::int64_t n;
  float alpha, beta;
};
using Batch = ItemBatch<Item, kChunk>;
using Table = Batch::Table;

template <int kWidth, int kUnits, class S, class T>
__device__ __forceinline__ void add_chunk(const Table& table) {
  const auto [k, count, begin] = table.part();
  S* dst = global(static_cast<S*>(table.item[k].dst) + begin);
  const T* src = global(static_cast<const T*>(table.item[k].src) + begin);
  const S alpha = table.item[k].alpha, beta = table.item[k].beta;
  for (int at = static_cast<int>(threadIdx.x) * kWidth; at < count;
       at += kThreads * kUnits * kWidth) {
    S added[kUnits][kWidth], old[kUnits][kWidth] = {};
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int i = at + u * kThreads * kWidth;
      if (i >= count) break;
      load<kWidth>(src + i, added[u]);
      if (beta != S(0)) load<kWidth>(dst + i, old[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int i = at + u * kThreads * kWidth;
      if (i >= count) break;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) old[u][j] = beta * old[u][j] + alpha * added[u][j];
      store<kWidth>(dst + i, old[u]);
    }
  }
}
template <class S, class T>
inline constexpr int kWidth = sizeof(S) < sizeof(T) ? kPack<S> : kPack<T>;

template <class S, class T>
__global__ void __launch_bounds__(kThreads) accumulate_table(Table table) {
  wait_for_earlier_kernels();
  add_chunk<kWidth<S, T>, 2, S, T>(table);
}
template <class S, class T>
__global__ void __launch_bounds__(kThreads) accumulate_table_ragged(Table table) {
  wait_for_earlier_kernels();
  add_chunk<1, 4, S, T>(table);
}

template <class S, class T>
void accumulate_as(Stream stream, std::span<const AccumulateItem> items) {
  Batch packs(accumulate_table<S, T>, kThreads, stream);
  Batch singles(accumulate_table_ragged<S, T>, kThreads, stream);
  for (const AccumulateItem& item : items) {
    if (item.dst.dtype != dtype_of<S> || item.src.dtype != dtype_of<T>) continue;
    const std::int64_t n = item.dst.shape.numel();
    S* dst = item.dst.data<S>();
    const T* src = item.src.data<T>();
    const std::int64_t packed = is_aligned(dst) && is_aligned(src) ? n - n % kWidth<S, T> : 0;
    packs.add({dst, src, packed, item.alpha, item.beta});
    singles.add({dst + packed, src + packed, n - packed, item.alpha, item.beta});
  }
  packs.flush();
  singles.flush();
}
}  // namespace

void accumulate(Stream stream, const Accumulate& a) {
  for (const DType source : {DType::kF32, DType::kBF16, DType::kF64})
    visit_float(source, [&]<class T>() {
      accumulate_as<float, T>(stream, a.items);
      accumulate_as<double, T>(stream, a.items);
    });
}
}  // namespace accrue::kernels::cuda

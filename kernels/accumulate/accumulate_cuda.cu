#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/vector.cuh>
#include <accrue/kernels/accumulate/accumulate.h>

namespace accrue::kernels::cuda {
using namespace accrue::cuda;
namespace {
constexpr int kThreads = 256, kChunk = 8192;  // a chunk is the work of one block

// What one launch adds: a kernel argument, so that nothing is copied to the device before it.
struct Table {
  static constexpr int kItems = 110;
  struct Item {
    void* dst;
    const void* src;
    std::int64_t n;
    float alpha, beta;
  };
  Item item[kItems];
  int first_chunk[kItems];  // of each item
  int items = 0, chunks = 0;
};
static_assert(sizeof(Table) <= 4096);

template <class T>
__device__ __forceinline__ T* global(T* p) {
  __builtin_assume(__isGlobal(p));  // or the compiler would not know the address space
  return p;
}

template <int kWidth, int kUnits, class S, class T>
__device__ __forceinline__ void add_chunk(const Table& table) {
  const int chunk = static_cast<int>(blockIdx.x);
  int k = 0;
#pragma unroll
  for (int step = 64; step > 0; step /= 2)
    if (k + step < table.items && table.first_chunk[k + step] <= chunk) k += step;
  const std::int64_t begin = std::int64_t{chunk - table.first_chunk[k]} * kChunk;
  const std::int64_t left = table.item[k].n - begin;
  const int count = left < kChunk ? static_cast<int>(left) : kChunk;
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
  add_chunk<kWidth<S, T>, 2, S, T>(table);
}
template <class S, class T>
__global__ void __launch_bounds__(kThreads) accumulate_table_ragged(Table table) {
  add_chunk<1, 4, S, T>(table);
}

class Batch {
 public:
  Batch(void (*kernel)(Table), Stream stream) : kernel_(kernel), stream_(stream) {}
  void add(const Table::Item& item) {
    if (item.n == 0) return;
    if (table_.items == Table::kItems) flush();
    table_.first_chunk[table_.items] = table_.chunks;
    table_.item[table_.items++] = item;
    table_.chunks += static_cast<int>(blocks_for(item.n, kChunk));
  }
  void flush() {
    launch(kernel_, dim3(static_cast<unsigned>(table_.chunks)), dim3(kThreads), 0, stream_, table_);
    table_.items = table_.chunks = 0;
  }

 private:
  void (*kernel_)(Table);
  Stream stream_;
  Table table_;
};

template <class S, class T>
void accumulate_as(Stream stream, std::span<const AccumulateItem> items) {
  Batch packs(accumulate_table<S, T>, stream), singles(accumulate_table_ragged<S, T>, stream);
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

#pragma once
// Many tensors in one launch: a table of them is the kernel's argument, so that nothing is copied
// to the device before it.
#include <tuple>
#include <accrue/core/cuda/device.cuh>

namespace accrue::kernels::cuda {

/// As many items as fit into the 4 KB of a launch, each cut into blocks of kChunk elements. An
/// Item has at least `std::int64_t n`, its elements.
template <class Item, int kChunk>
struct ItemTable {
  static constexpr int kItems = 3960 / static_cast<int>(sizeof(Item) + sizeof(int));
  static_assert(kItems <= 128);
  Item item[kItems];
  int first_chunk[kItems];  // of each item
  int items = 0, chunks = 0;

  /// What one CUDA block works on: elements [begin, begin + count) of item[index].
  struct Part {
    int index, count;
    std::int64_t begin;
  };
  __device__ __forceinline__ Part part() const {
    const int chunk = static_cast<int>(blockIdx.x);
    int k = 0;
#pragma unroll
    for (int step = 64; step > 0; step /= 2)
      if (k + step < items && first_chunk[k + step] <= chunk) k += step;
    const std::int64_t begin = std::int64_t{chunk - first_chunk[k]} * kChunk;
    const std::int64_t left = item[k].n - begin;
    return {k, left < kChunk ? static_cast<int>(left) : kChunk, begin};
  }
};

/// Collects items and launches `kernel(table, rest...)` over them, kThreads threads a block: when a
/// table is full, and at flush().
template <class Item, int kChunk, class... Rest>
class ItemBatch {
 public:
  using Table = ItemTable<Item, kChunk>;
  static_assert(sizeof(Table) + (sizeof(Rest) + ... + 0) <= 4096);
  ItemBatch(void (*kernel)(Table, Rest...), int threads, Stream stream, Rest... rest)
      : kernel_(kernel),
        threads_(static_cast<unsigned>(threads)),
        stream_(stream),
        rest_(rest...) {}
  void add(const Item& item) {
    if (item.n == 0) return;
    if (table_.items == Table::kItems) flush();
    table_.first_chunk[table_.items] = table_.chunks;
    table_.item[table_.items++] = item;
    table_.chunks += static_cast<int>(accrue::cuda::blocks_for(item.n, kChunk));
  }
  void flush() {
    std::apply(
        [&](Rest... rest) {
          accrue::cuda::launch_early(kernel_, dim3(static_cast<unsigned>(table_.chunks)),
                                     dim3(threads_), 0, stream_, table_, rest...);
        },
        rest_);
    table_.items = table_.chunks = 0;
  }

 private:
  void (*kernel_)(Table, Rest...);
  unsigned threads_;
  Stream stream_;
  std::tuple<Rest...> rest_;
  Table table_;
};

/// Tells the compiler that p points into global memory, which it cannot know of a pointer that
/// comes out of a table.
template <class T>
__device__ __forceinline__ T* global(T* p) {
  __builtin_assume(__isGlobal(p));
  return p;
}
}  // namespace accrue::kernels::cuda

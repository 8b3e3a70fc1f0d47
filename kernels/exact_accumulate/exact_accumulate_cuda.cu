#include <limits>
#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/reduce.cuh>
#include <accrue/core/cuda/vector.cuh>
#include <accrue/kernels/cuda/item_table.cuh>
#include <accrue/kernels/exact_accumulate/exact_accumulate.h>

namespace accrue::kernels::cuda {
using namespace accrue::cuda;
namespace {
constexpr int kThreads = 256, kChunk = 8192;  // a chunk is the work of one block

struct Leaf {
  std::int64_t* sum;
  const void* leaf;
  std::int64_t n;
  int number, first;
};
using Leaves = ItemBatch<Leaf, kChunk, const std::int64_t*, int, unsigned long long*>;

struct Result {
  void* dst;
  const std::int64_t* sum;
  std::int64_t n;
  int number;
};
using Results = ItemBatch<Result, kChunk, const std::int64_t*, int, const std::int64_t*>;

__device__ __forceinline__ std::int64_t unit_of(const std::int64_t* exponents, int tensors,
                                                int number) {
  return exact_unit(exponents[number], exponents[tensors]);
}

template <int kN>
__device__ __forceinline__ void load_sums(const std::int64_t* p, std::int64_t (&out)[kN]) {
  const auto packed = load_packed<kN>(p);
  __builtin_memcpy(out, &packed, sizeof out);
}
template <int kN>
__device__ __forceinline__ void store_sums(std::int64_t* p, const std::int64_t (&v)[kN]) {
  constexpr int kAtOnce = kN < 2 ? 1 : 2;  // 128 bits: of more the compiler makes 64-bit stores
#pragma unroll
  for (int j = 0; j < kN; j += kAtOnce) {
    Packed<std::int64_t, kAtOnce> packed;
    __builtin_memcpy(&packed, v + j, sizeof packed);
    *reinterpret_cast<decltype(packed)*>(p + j) = packed;
  }
}

template <int kWidth, int kUnits, class T>
__device__ __forceinline__ void add_chunk(const Leaves::Table& table, const std::int64_t* exponents,
                                          int tensors, unsigned long long* observed) {
  const auto [k, count, begin] = table.part();
  std::int64_t* sum = global(table.item[k].sum + begin);
  const T* leaf = global(static_cast<const T*>(table.item[k].leaf) + begin);
  const int number = table.item[k].number;
  const bool first = table.item[k].first != 0;
  const double scale = power_of_two(-unit_of(exponents, tensors, number));
  long long most = 0;
  for (int at = static_cast<int>(threadIdx.x) * kWidth; at < count;
       at += kThreads * kUnits * kWidth) {
    double x[kUnits][kWidth];
    std::int64_t total[kUnits][kWidth] = {};
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int i = at + u * kThreads * kWidth;
      if (i >= count) break;
      load<kWidth>(leaf + i, x[u]);
      if (!first) load_sums<kWidth>(sum + i, total[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int i = at + u * kThreads * kWidth;
      if (i >= count) break;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        // Unsigned, because the sum of leaves that break their bound may wrap.
        const auto units = static_cast<unsigned long long>(
                               __double_as_longlong(__fma_rn(x[u][j], scale, kExactRound))) -
                           __builtin_bit_cast(unsigned long long, kExactRound);
        total[u][j] =
            static_cast<std::int64_t>(static_cast<unsigned long long>(total[u][j]) + units);
        const long long magnitude =
            __double_as_longlong(x[u][j]) & std::numeric_limits<long long>::max();
        most = magnitude > most ? magnitude : most;
      }
      store_sums<kWidth>(sum + i, total[u]);
    }
  }
  ACCRUE_SHARED(long long, scratch, [kThreads / kWarp]);
  most = block_reduce<kThreads>(most, scratch, Max{});
  if (threadIdx.x == 0 && most > 0)
    atomicMax(observed + number, static_cast<unsigned long long>(most));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_leaves(Leaves::Table table, const std::int64_t* exponents, int tensors,
               unsigned long long* observed) {
  wait_for_earlier_kernels();
  add_chunk<kPack<T>, sizeof(T) == 2 ? 1 : 2, T>(table, exponents, tensors, observed);
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_leaves_ragged(Leaves::Table table, const std::int64_t* exponents, int tensors,
                      unsigned long long* observed) {
  wait_for_earlier_kernels();
  add_chunk<1, 4, T>(table, exponents, tensors, observed);
}

template <int kWidth, class T>
__device__ __forceinline__ void unfold_chunk(const Results::Table& table,
                                             const std::int64_t* exponents, int tensors,
                                             const std::int64_t* observed) {
  const auto [k, count, begin] = table.part();
  T* dst = global(static_cast<T*>(table.item[k].dst) + begin);
  const std::int64_t* sum = global(table.item[k].sum + begin);
  const int number = table.item[k].number;
  const double scale = observed[number] < kExactInfinite
                           ? power_of_two(unit_of(exponents, tensors, number))
                           : std::numeric_limits<double>::quiet_NaN();
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x) * kWidth; i < count; i += kThreads * kWidth) {
    std::int64_t total[kWidth];
    double value[kWidth];
    load_sums<kWidth>(sum + i, total);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) value[j] = static_cast<double>(total[j]) * scale;
    store<kWidth>(dst + i, value);
  }
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    unfold(Results::Table table, const std::int64_t* exponents, int tensors,
           const std::int64_t* observed) {
  wait_for_earlier_kernels();
  unfold_chunk<kPack<T>, T>(table, exponents, tensors, observed);
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    unfold_ragged(Results::Table table, const std::int64_t* exponents, int tensors,
                  const std::int64_t* observed) {
  wait_for_earlier_kernels();
  unfold_chunk<1, T>(table, exponents, tensors, observed);
}

// Elements of an item that 16-byte accesses may take.
template <class T>
std::int64_t packed_elements(const T* values, const std::int64_t* sum, std::int64_t n) {
  return is_aligned(values) && is_aligned(sum) ? n - n % kPack<T> : 0;
}

template <class T>
void add_items(Stream stream, const ExactAccumulate& a) {
  const std::int64_t* exponents = a.exponents.data<std::int64_t>();
  const int tensors = static_cast<int>(a.exponents.shape.numel()) - 1;
  auto* observed = reinterpret_cast<unsigned long long*>(a.observed.data<std::int64_t>());
  Leaves packs(add_leaves<T>, kThreads, stream, exponents, tensors, observed);
  Leaves singles(add_leaves_ragged<T>, kThreads, stream, exponents, tensors, observed);
  for (const ExactItem& item : a.items) {
    if (item.leaf.dtype != dtype_of<T>) continue;
    const std::int64_t n = item.sum.shape.numel();
    std::int64_t* sum = item.sum.data<std::int64_t>();
    const T* leaf = item.leaf.data<T>();
    const std::int64_t packed = packed_elements(leaf, sum, n);
    packs.add({sum, leaf, packed, item.number, item.first});
    singles.add({sum + packed, leaf + packed, n - packed, item.number, item.first});
  }
  packs.flush();
  singles.flush();
}

template <class T>
void unfold_items(Stream stream, const ExactUnfold& a) {
  const std::int64_t* exponents = a.exponents.data<std::int64_t>();
  const int tensors = static_cast<int>(a.exponents.shape.numel()) - 1;
  const std::int64_t* observed = a.observed.data<std::int64_t>();
  Results packs(unfold<T>, kThreads, stream, exponents, tensors, observed);
  Results singles(unfold_ragged<T>, kThreads, stream, exponents, tensors, observed);
  for (const ExactResult& item : a.items) {
    if (item.dst.dtype != dtype_of<T>) continue;
    const std::int64_t n = item.sum.shape.numel();
    T* dst = item.dst.data<T>();
    const std::int64_t* sum = item.sum.data<std::int64_t>();
    const std::int64_t packed = packed_elements(dst, sum, n);
    packs.add({dst, sum, packed, item.number});
    singles.add({dst + packed, sum + packed, n - packed, item.number});
  }
  packs.flush();
  singles.flush();
}
}  // namespace

void exact_accumulate(Stream stream, const ExactAccumulate& a) {
  for (const DType leaf : {DType::kF32, DType::kBF16, DType::kF64})
    visit_float(leaf, [&]<class T>() { add_items<T>(stream, a); });
}
void exact_unfold(Stream stream, const ExactUnfold& a) {
  unfold_items<float>(stream, a);
  unfold_items<double>(stream, a);
}
}  // namespace accrue::kernels::cuda

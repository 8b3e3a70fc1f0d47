#include <atomic>
#include <accrue/kernels/exact_accumulate/exact_accumulate.h>
#if ACCRUE_ISA > 0
  #include <immintrin.h>
#endif
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/load_double.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
using Int = VecInt<double>;
using Bits = VecBits<double>;
constexpr std::int64_t kMagnitude = std::numeric_limits<std::int64_t>::max();

ACCRUE_INLINE Int larger(Int a, Int b) { return a > b ? a : b; }

// Unsigned, because the sum of leaves that break their bound may wrap.
ACCRUE_INLINE Bits in_units(Vec<double> x, double scale) {
  return (Bits)(x * scale + kExactRound) - (Bits)splat<double>(kExactRound);
}

// Returns the bits of the largest |leaf|.
template <class T>
std::int64_t add_leaves(std::int64_t* sum, const T* leaf, std::int64_t n, double scale,
                        bool first) {
  Int most{};
  const auto add = [&](std::int64_t* to, const T* from) {
    const Vec<double> x = load_double(from);
    Bits total = in_units(x, scale), old;
    if (!first) {
      std::memcpy(&old, to, sizeof old);
      total += old;
    }
    std::memcpy(to, &total, sizeof total);
    most = larger(most, (Int)x & kMagnitude);
  };
  std::int64_t i = 0;
  for (; i + kLanes<double> <= n; i += kLanes<double>) add(sum + i, leaf + i);
  if (i < n) {
    T values[kLanes<double>] = {};
    std::int64_t sums[kLanes<double>] = {};
    std::copy(leaf + i, leaf + n, values);
    if (!first) std::copy(sum + i, sum + n, sums);
    add(sums, values);
    std::copy(sums, sums + (n - i), sum + i);
  }
  std::int64_t result = 0;
  for (int j = 0; j < kLanes<double>; ++j) result = std::max<std::int64_t>(result, most[j]);
  return result;
}

void raise(std::int64_t& value, std::int64_t to) {
  const std::atomic_ref<std::int64_t> shared(value);
  std::int64_t now = shared.load(std::memory_order_relaxed);
  while (now < to && !shared.compare_exchange_weak(now, to, std::memory_order_relaxed)) {}
}

// body(item, begin, end, unit) for every chunk.
template <class Args, class Body>
void for_each_item_chunk(const Args& a, Body&& body) {
  const std::int64_t* exponents = a.exponents.template data<std::int64_t>();
  const std::int64_t leaf_bits = exponents[a.exponents.shape.numel() - 1];
  parallel_for(a.first_chunk.back(), 1, [&](std::int64_t chunk, std::int64_t) {
    const auto at = std::upper_bound(a.first_chunk.begin(), a.first_chunk.end(), chunk) - 1;
    const auto& item = a.items[static_cast<std::size_t>(at - a.first_chunk.begin())];
    const std::int64_t begin = (chunk - *at) * Args::kChunk;
    const std::int64_t end = std::min(item.sum.shape.numel(), begin + Args::kChunk);
    body(item, begin, end, exact_unit(exponents[item.number], leaf_bits));
  });
}
}  // namespace

void exact_accumulate(Stream, const ExactAccumulate& a) {
  std::int64_t* observed = a.observed.data<std::int64_t>();
  for_each_item_chunk(
      a, [&](const ExactItem& item, std::int64_t begin, std::int64_t end, std::int64_t unit) {
        visit_float(item.leaf.dtype, [&]<class T>() {
          raise(observed[item.number],
                add_leaves(item.sum.data<std::int64_t>() + begin, item.leaf.data<T>() + begin,
                           end - begin, power_of_two(-unit), item.first));
        });
      });
}

void exact_unfold(Stream, const ExactUnfold& a) {
  const std::int64_t* observed = a.observed.data<std::int64_t>();
  for_each_item_chunk(
      a, [&](const ExactResult& item, std::int64_t begin, std::int64_t end, std::int64_t unit) {
        const double scale = observed[item.number] < kExactInfinite
                                 ? power_of_two(unit)
                                 : std::numeric_limits<double>::quiet_NaN();
        const std::int64_t* sum = item.sum.data<std::int64_t>();
        const auto unfold = [&]<class T>(T* dst) {
          for (std::int64_t i = begin; i < end; ++i)
            dst[i] = static_cast<T>(static_cast<double>(sum[i]) * scale);
        };
        if (item.dst.dtype == DType::kF64)
          unfold(item.dst.data<double>());
        else
          unfold(item.dst.data<float>());
      });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

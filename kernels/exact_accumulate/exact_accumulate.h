#pragma once
#include <cstdint>
#include <span>
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// Sums in fixed point: integer addition is associative, so a sum has the same bits in whatever
/// order, and over however many machines, its leaves are added. Tensor t counts in units of
///   unit(t) = 2^(e_t + c - 62),
/// where |leaf| < 2^e_t for every leaf and no sum has more than 2^c of them: then no order
/// overflows.
///   exact_accumulate:  sum += round(leaf / unit), to nearest, ties to even; and
///                      observed = max(observed, |leaf|)
///   exact_unfold:      dst = sum * unit, by way of float64; NaN where a leaf was not finite
/// Nothing is checked on the device: when some |leaf| >= 2^e_t the sum is meaningless, and
/// `observed` says so. All results have the same bits on every device and instruction set
/// (denormal leaves are 0, as in every kernel).
struct ExactItem {
  View sum;            // int64
  ConstView leaf;      // any floating dtype, as many elements
  int number = 0;      // of the tensor, in `exponents` and `observed`
  bool first = false;  // the sum becomes the leaf, and is not read
};
struct ExactResult {
  View dst;       // float32 or float64
  ConstView sum;  // int64, as many elements
  int number = 0;
};

/// exponents: int64 (n + 1), e_t of n tensors (-200 .. 1000) and then c (12 .. 30). observed: int64
/// (n), the bits of the largest |leaf| as a float64, NaN above all; 0 before the first. Both lie on
/// the device of all items. No two sums may overlap.
void exact_accumulate(std::span<const ExactItem> items, const Tensor& exponents,
                      const Tensor& observed);
void exact_unfold(std::span<const ExactResult> items, const Tensor& exponents,
                  const Tensor& observed);

/// Bit patterns from here on (2^1000) count as not finite.
inline constexpr std::int64_t kExactInfinite = std::int64_t{1023 + 1000} << 52;

namespace kernels {
/// 2^n for |n| < 1023.
constexpr double power_of_two(std::int64_t n) {
  return __builtin_bit_cast(double, (1023 + n) << 52);
}
/// log2 of the unit.
constexpr std::int64_t exact_unit(std::int64_t exponent, std::int64_t leaf_bits) {
  return exponent + leaf_bits - 62;
}
/// x + kExactRound - kExactRound rounds |x| <= 2^51 to an integer, which stands in the low bits of
/// the first sum.
inline constexpr double kExactRound = 6755399441055744.0;  // 1.5 * 2^52

struct ExactAccumulate {
  std::span<const ExactItem> items;
  /// Where the chunks of each item begin, and their total behind the last.
  std::span<const std::int64_t> first_chunk;
  ConstView exponents;
  View observed;
  static constexpr std::int64_t kChunk = 8192;  // elements
};
struct ExactUnfold {
  std::span<const ExactResult> items;
  std::span<const std::int64_t> first_chunk;
  ConstView exponents, observed;
  static constexpr std::int64_t kChunk = ExactAccumulate::kChunk;
};
inline Work work_of(const ExactAccumulate& a) {
  Work w;
  for (const ExactItem& i : a.items)
    w.bytes += bytes_of(i.leaf) + (i.first ? 1 : 2) * bytes_of(i.sum);
  return w;
}
inline Work work_of(const ExactUnfold& a) {
  Work w;
  for (const ExactResult& i : a.items) w.bytes += moved(i.sum, i.dst).bytes;
  return w;
}
extern const Kernel<ExactAccumulate> exact_accumulate;
extern const Kernel<ExactUnfold> exact_unfold;
}  // namespace kernels
}  // namespace accrue

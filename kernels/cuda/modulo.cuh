#pragma once
// Division by a number that many threads share, without a division.
#include <accrue/core/cuda/device.cuh>

namespace accrue::kernels::cuda {

/// i mod d for 0 <= i < 2^63, by a multiplication with m = floor(2^(63 + s) / d) + 1, where
/// 2^(s - 1) < d <= 2^s (Granlund, Montgomery 1994): m d exceeds 2^(63 + s) by at most 2^s, which
/// for such i does not move floor(i m / 2^(63 + s)). d >= 2.
class Modulo {
 public:
  explicit Modulo(std::int64_t d) : divisor_(static_cast<std::uint64_t>(d)) {
    ACCRUE_CHECK(d >= 2, "cuda: a period of ", d);
    while ((std::uint64_t{1} << (shift_ + 1)) < divisor_) ++shift_;  // shift_ = s - 1
    std::uint64_t rest = std::uint64_t{1}
                         << shift_;  // 2^(63 + s) = rest * 2^64, divided bit by bit
    for (int bit = 0; bit < 64; ++bit) {
      rest *= 2;
      factor_ *= 2;
      if (rest >= divisor_) {
        rest -= divisor_;
        ++factor_;
      }
    }
    ++factor_;
  }
  std::int64_t divisor() const { return static_cast<std::int64_t>(divisor_); }
  __device__ __forceinline__ std::int64_t of(std::int64_t i) const {
    const auto n = static_cast<std::uint64_t>(i);
    return static_cast<std::int64_t>(n - (__umul64hi(n, factor_) >> shift_) * divisor_);
  }

 private:
  std::uint64_t divisor_, factor_ = 0;
  int shift_ = 0;
};
}  // namespace accrue::kernels::cuda

#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// Overwrites every element, without a gradient. Any dtype; an integer dtype takes whole numbers.
void fill(const Tensor& t, double value);

/// Overwrites every element with a random number, without a gradient. Floating dtypes. A number
/// depends on seed, stream_index and the element's place only, not on shape, threads or dtype
/// (computed in float64, then rounded). Element e comes from the words of
///   philox4x32({e / 4 low, e / 4 high, stream_index low, stream_index high}, mix64(seed)).
/// fill_uniform: low + (high - low) w / 2^32, w word e % 4; rounding may reach `high`.
/// fill_normal: mean + std z, by Box and Muller (1958): with u = (w + 1/2) / 2^32 of words 0 and 1,
///   z = sqrt(-2 ln u0) cos(2 pi u1), then sqrt(-2 ln u0) sin(2 pi u1); words 2 and 3 alike.
///   |z| <= 6.8.
void fill_uniform(const Tensor& t, double low, double high, std::uint64_t seed,
                  std::uint64_t stream_index);
void fill_normal(const Tensor& t, double mean, double std, std::uint64_t seed,
                 std::uint64_t stream_index);

namespace kernels {
struct Fill {
  View y;
  double value = 0;
};
enum class Distribution { kUniform, kNormal };
struct FillRandom {
  View y;
  Distribution distribution = Distribution::kUniform;
  double a = 0, b = 1;  // low and high, or mean and standard deviation
  std::uint64_t seed = 0, stream_index = 0;
};
inline Work work_of(const Fill& a) { return moved(a.y); }
inline Work work_of(const FillRandom& a) { return moved(a.y); }
extern const Kernel<Fill> fill;
extern const Kernel<FillRandom> fill_random;
}  // namespace kernels
}  // namespace accrue

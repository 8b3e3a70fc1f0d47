#include <cmath>
#include <accrue/kernels/check.h>
#include <accrue/kernels/fill/fill.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(fill, Fill);
ACCRUE_KERNEL(fill_random, FillRandom);
}  // namespace kernels

void fill(const Tensor& t, double value) {
  kernels::check_defined("fill", "t", t);
  const double limit = t.dtype() == DType::kI32 ? 0x1p31 : 0x1p63;
  ACCRUE_CHECK(
      is_floating(t.dtype()) || (std::trunc(value) == value && value >= -limit && value < limit),
      "fill: t is ", t.dtype(), ", which does not hold ", value);
  kernels::fill(t.stream(), {.y = t.view(), .value = value});
}

void fill_uniform(const Tensor& t, double low, double high, std::uint64_t seed,
                  std::uint64_t stream_index) {
  kernels::check_floating("fill_uniform", "t", t);
  ACCRUE_CHECK(low <= high && std::isfinite(high - low), "fill_uniform: expected low <= high, got ",
               low, " and ", high);
  kernels::fill_random(t.stream(), {.y = t.view(),
                                    .distribution = kernels::Distribution::kUniform,
                                    .a = low,
                                    .b = high,
                                    .seed = seed,
                                    .stream_index = stream_index});
}

void fill_normal(const Tensor& t, double mean, double std, std::uint64_t seed,
                 std::uint64_t stream_index) {
  kernels::check_floating("fill_normal", "t", t);
  ACCRUE_CHECK(std >= 0 && std::isfinite(std) && std::isfinite(mean),
               "fill_normal: expected a finite mean and std >= 0, got ", mean, " and ", std);
  kernels::fill_random(t.stream(), {.y = t.view(),
                                    .distribution = kernels::Distribution::kNormal,
                                    .a = mean,
                                    .b = std,
                                    .seed = seed,
                                    .stream_index = stream_index});
}
}  // namespace accrue

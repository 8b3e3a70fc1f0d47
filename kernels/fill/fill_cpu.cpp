#include <array>
#include <accrue/core/random.h>
#include <accrue/kernels/fill/fill.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/elementwise.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
template <class T>
T rounded(double v) {
  if constexpr (std::is_same_v<T, bfloat16>)
    return bfloat16(static_cast<float>(v));
  else
    return static_cast<T>(v);
}

std::array<double, 4> random_four(const FillRandom& a, std::uint64_t block) {
  const std::uint64_t key = mix64(a.seed);
  const auto low = [](std::uint64_t v) { return static_cast<std::uint32_t>(v); };
  const auto high = [](std::uint64_t v) { return static_cast<std::uint32_t>(v >> 32); };
  const auto w = philox4x32({low(block), high(block), low(a.stream_index), high(a.stream_index)},
                            {low(key), high(key)});
  if (a.distribution == Distribution::kUniform) {
    const double scale = (a.b - a.a) * 0x1p-32;
    return {a.a + scale * w[0], a.a + scale * w[1], a.a + scale * w[2], a.a + scale * w[3]};
  }
  std::array<double, 4> z;
  for (std::size_t i = 0; i < 4; i += 2) {
    const double radius = a.b * std::sqrt(-2.0 * std::log((w[i] + 0.5) * 0x1p-32));
    const double angle = 6.283185307179586477 * ((w[i + 1] + 0.5) * 0x1p-32);
    z[i] = a.a + radius * std::cos(angle);
    z[i + 1] = a.a + radius * std::sin(angle);
  }
  return z;
}
}  // namespace

void fill(Stream, const Fill& a) {
  visit_any(a.y.dtype, [&]<class T>() {
    T* y = a.y.data<T>();
    const T value = rounded<T>(a.value);
    parallel_for(a.y.shape.numel(), kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      std::fill(y + begin, y + end, value);
    });
  });
}

void fill_random(Stream, const FillRandom& a) {
  visit_float(a.y.dtype, [&]<class T>() {
    T* y = a.y.data<T>();
    parallel_for(a.y.shape.numel(), kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; i += 4) {
        const auto four = random_four(a, static_cast<std::uint64_t>(i / 4));
        for (std::int64_t j = i; j < std::min(end, i + 4); ++j)
          y[j] = rounded<T>(four[static_cast<std::size_t>(j - i)]);
      }
    });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

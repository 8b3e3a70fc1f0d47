#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>
#include <accrue/config.h>
#include <accrue/core/isa.h>
#include <accrue/core/parallel.h>
#include "tests/kernels/simd_isa.h"
#include "tests/support/catch.h"

using namespace accrue;
using test::SimdFunction;

namespace {
struct Set {
  Isa isa;
  void (*apply)(SimdFunction, const float*, float*, std::int64_t);
  void (*narrow)(const float*, bfloat16*, std::int64_t);
  void (*widen)(const bfloat16*, float*, std::int64_t);
};
std::vector<Set> sets() {
  namespace k = accrue::kernels;
  std::vector<Set> all{
      {Isa::kPortable, k::portable::simd_apply, k::portable::simd_narrow, k::portable::simd_widen}};
#if ACCRUE_HAS_AVX2
  if (best_isa() >= Isa::kAvx2)
    all.push_back({Isa::kAvx2, k::avx2::simd_apply, k::avx2::simd_narrow, k::avx2::simd_widen});
#endif
#if ACCRUE_HAS_AVX512
  if (best_isa() >= Isa::kAvx512)
    all.push_back(
        {Isa::kAvx512, k::avx512::simd_apply, k::avx512::simd_narrow, k::avx512::simd_widen});
#endif
  return all;
}

// Errors in units in the last place of the float next to the exact result.
double ulps(float got, double want) {
  if (static_cast<double>(got) == want) return 0;
  int exponent;
  std::frexp(want, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 24, -149));
  const double error = std::abs(static_cast<double>(got) - want) / unit;
  return std::isnan(error) ? INFINITY : error;
}

struct Worst {
  double error = 0;
  float at = 0;
};
// Over every `stride`-th float whose magnitude lies in [low, high], both signs.
Worst scan(const Set& set, SimdFunction f, double (*exact)(double), float low, float high,
           std::uint32_t stride) {
  const FlushDenormals flush;
  Worst worst;
  std::vector<float> x, y;
  const auto run = [&] {
    y.resize(x.size());
    set.apply(f, x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = ulps(y[i], exact(static_cast<double>(x[i])));
      if (error > worst.error) worst = {error, x[i]};
    }
    x.clear();
  };
  for (std::uint32_t b = std::bit_cast<std::uint32_t>(low); b <= std::bit_cast<std::uint32_t>(high);
       b += stride) {
    x.push_back(std::bit_cast<float>(b));
    x.push_back(-x.back());
    if (x.size() >= 4096) run();
  }
  run();
  return worst;
}
std::vector<float> apply(const Set& set, SimdFunction f, const std::vector<float>& x) {
  const FlushDenormals flush;
  std::vector<float> y(x.size());
  set.apply(f, x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  return y;
}

constexpr std::uint32_t kStride = 3989;  // prime: about half a million floats per function and set
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
}  // namespace

TEST_CASE("simd exp, tanh, erf and sigmoid: units in the last place", "[kernels][simd][cpu]") {
  struct Range {
    const char* name;
    SimdFunction f;
    double (*exact)(double);
    float low, high;
    double allowed;
  };
  const Range ranges[] = {
      {"exp", SimdFunction::kExp, [](double x) { return std::exp(x); }, 1e-30f, 87.3f, 1},
      {"tanh", SimdFunction::kTanh, [](double x) { return std::tanh(x); }, 1e-30f, 100.0f, 1.5},
      {"erf", SimdFunction::kErf, [](double x) { return std::erf(x); }, 1e-30f, 100.0f, 1.5},
      {"sigmoid", SimdFunction::kSigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 1e-30f,
       87.0f, 2.5},
  };
  for (const Set& set : sets())
    for (const Range& r : ranges) {
      const Worst worst = scan(set, r.f, r.exact, r.low, r.high, kStride);
      INFO(r.name << ", " << name_of(set.isa) << ": " << worst.error << " at " << worst.at);
      CHECK(worst.error <= r.allowed);
    }
}

TEST_CASE("simd exp: limits, infinities, NaN", "[kernels][simd][cpu]") {
  for (const Set& set : sets()) {
    const auto y = apply(
        set, SimdFunction::kExp,
        {0.0f, -0.0f, 88.72f, 88.73f, 1e30f, kInf, -87.33f, -87.34f, -1e30f, -kInf, kNan, 1e-40f});
    INFO(name_of(set.isa));
    CHECK(y[0] == 1.0f);
    CHECK(y[1] == 1.0f);
    CHECK(ulps(y[2], std::exp(static_cast<double>(88.72f))) <= 2);
    CHECK(y[3] == kInf);
    CHECK(y[4] == kInf);
    CHECK(y[5] == kInf);
    CHECK(ulps(y[6], std::exp(static_cast<double>(-87.33f))) <= 2);
    CHECK(y[7] == 0.0f);
    CHECK(y[8] == 0.0f);
    CHECK(y[9] == 0.0f);
    CHECK(std::isnan(y[10]));
    CHECK(y[11] == 1.0f);
  }
}

TEST_CASE("simd tanh, erf and sigmoid: limits, infinities, NaN, odd symmetry",
          "[kernels][simd][cpu]") {
  const std::vector<float> x{0.0f, -0.0f, 20.0f, 1e30f, kInf, -20.0f, -1e30f, -kInf, kNan};
  for (const Set& set : sets()) {
    INFO(name_of(set.isa));
    for (const SimdFunction f : {SimdFunction::kTanh, SimdFunction::kErf}) {
      const auto y = apply(set, f, x);
      CHECK((y[0] == 0.0f && !std::signbit(y[0])));
      CHECK((y[1] == 0.0f && std::signbit(y[1])));
      for (int i = 2; i <= 4; ++i) CHECK(y[static_cast<std::size_t>(i)] == 1.0f);
      for (int i = 5; i <= 7; ++i) CHECK(y[static_cast<std::size_t>(i)] == -1.0f);
      CHECK(std::isnan(y[8]));
      std::vector<float> up, down;
      for (float v = 0.01f; v < 6; v += 0.013f) up.push_back(v), down.push_back(-v);
      const auto a = apply(set, f, up), b = apply(set, f, down);
      for (std::size_t i = 0; i < a.size(); ++i) {
        REQUIRE(a[i] == -b[i]);
        REQUIRE((a[i] > 0 && a[i] <= 1));
      }
    }
    const auto s = apply(set, SimdFunction::kSigmoid, x);
    CHECK(s[0] == 0.5f);
    CHECK(s[3] == 1.0f);
    CHECK(s[4] == 1.0f);
    CHECK(s[6] == 0.0f);
    CHECK(s[7] == 0.0f);
    CHECK(std::isnan(s[8]));
  }
}

TEST_CASE("simd bfloat16: every value widens, and narrowing rounds as bfloat16 does",
          "[kernels][simd][cpu]") {
  std::vector<bfloat16> all;
  for (std::uint32_t b = 0; b < 65536; ++b)
    all.push_back(bfloat16::from_bits(static_cast<std::uint16_t>(b)));
  // Every bfloat16, its neighbours in float32, and the ties between two bfloat16.
  std::vector<float> floats;
  for (std::uint32_t b = 0; b < 65536; ++b)
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      floats.push_back(std::bit_cast<float>(b << 16 | low));
  for (const Set& set : sets()) {
    INFO(name_of(set.isa));
    std::vector<float> wide(all.size());
    set.widen(all.data(), wide.data(), static_cast<std::int64_t>(all.size()));
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < all.size(); ++i)
      wrong += std::bit_cast<std::uint32_t>(wide[i]) != static_cast<std::uint32_t>(i) << 16;
    CHECK(wrong == 0);
    std::vector<bfloat16> narrow(floats.size());
    set.narrow(floats.data(), narrow.data(), static_cast<std::int64_t>(floats.size()));
    for (std::size_t i = 0; i < floats.size(); ++i)
      wrong += std::isnan(floats[i]) ? !std::isnan(static_cast<float>(narrow[i]))
                                     : narrow[i].bits != bfloat16(floats[i]).bits;
    CHECK(wrong == 0);
  }
}

#include <cmath>
#include <limits>
#include <accrue/core/isa.h>
#include <accrue/core/parallel.h>
#include <accrue/core/random.h>
#include <accrue/kernels/fill/fill.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("fill: every dtype, ragged sizes", "[kernels][fill]") {
  for (const std::int64_t n : {0, 1, 7, 33, 40000}) {
    for (const DType t : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kI64}) {
      const Tensor x = Tensor::empty({n}, t);
      fill(x, -3);
      std::int64_t wrong = 0;
      visit_any(t, [&]<class T>() {
        for (const T v : x.to_vector<T>())
          if constexpr (std::is_same_v<T, bfloat16>)
            wrong += static_cast<float>(v) != -3.0f;
          else
            wrong += v != T(-3);
      });
      CHECK(wrong == 0);
    }
  }
  const Tensor x = Tensor::empty({2}, DType::kF32);
  fill(x, NAN);
  CHECK(std::isnan(x.to_vector<float>()[1]));
}

TEST_CASE("fill_normal and fill_uniform: known values, by the formula", "[kernels][fill]") {
  // Philox4x32-10 of counter {0, 0, 5, 0} and key mix64(7), computed here once more in full.
  const auto word = [](std::uint64_t block) {
    std::uint64_t k = mix64(7);
    std::uint32_t c[4] = {static_cast<std::uint32_t>(block), 0, 5, 0};
    std::uint32_t k0 = static_cast<std::uint32_t>(k), k1 = static_cast<std::uint32_t>(k >> 32);
    for (int r = 0; r < 10; ++r, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      const std::uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
      const std::uint32_t next[4] = {
          static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
      std::copy(next, next + 4, c);
    }
    return std::vector<double>(c, c + 4);
  };
  const Tensor u = Tensor::empty({7}, DType::kF64), z = Tensor::empty({7}, DType::kF64);
  fill_uniform(u, -1, 3, 7, 5);
  fill_normal(z, 0.5, 2, 7, 5);
  const auto got_u = u.to_vector<double>(), got_z = z.to_vector<double>();
  for (std::size_t i = 0; i < 7; ++i) {
    const auto w = word(i / 4);
    CHECK(got_u[i] == Approx(-1 + 4 * w[i % 4] / 4294967296.0).epsilon(1e-14));
    const std::size_t pair = i % 4 / 2 * 2;
    const double r = std::sqrt(-2 * std::log((w[pair] + 0.5) / 4294967296.0));
    const double angle = 2 * M_PI * (w[pair + 1] + 0.5) / 4294967296.0;
    const double want = 0.5 + 2 * r * (i % 2 ? std::sin(angle) : std::cos(angle));
    CHECK(std::abs(got_z[i] - want) < 1e-13);
  }
}

TEST_CASE("fill_normal and fill_uniform: the same for any thread count, set and shape",
          "[kernels][fill]") {
  const auto values = [](const Shape& shape, std::uint64_t seed, std::uint64_t index, bool normal) {
    const Tensor t = Tensor::empty(shape, DType::kF32);
    normal ? fill_normal(t, 0, 1, seed, index) : fill_uniform(t, 0, 1, seed, index);
    return t.to_vector<float>();
  };
  const int threads = num_threads();
  const Isa best = current_isa();
  for (const bool normal : {false, true}) {
    set_num_threads(1);
    const auto first = values({70001}, 1, 2, normal);
    for (const int n : {2, 7}) {
      set_num_threads(n);
      CHECK(values({1, 70001}, 1, 2, normal) == first);
    }
    set_num_threads(threads);
    for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
      if (isa > best) continue;
      set_isa(isa);
      const auto again = values({70001}, 1, 2, normal);
      double worst = 0;
      for (std::size_t i = 0; i < first.size(); ++i)
        worst = std::max(worst, static_cast<double>(std::abs(again[i] - first[i])));
      CHECK(worst <= 1e-6);
    }
    set_isa(best);
    auto prefix = values({1003}, 1, 2, normal);
    CHECK(std::equal(prefix.begin(), prefix.end(), first.begin()));
    CHECK(values({70001}, 2, 2, normal) != first);
    CHECK(values({70001}, 1, 3, normal) != first);
    CHECK(values({70001}, 1, 2 + (std::uint64_t{1} << 32), normal) != first);
  }
}

TEST_CASE("fill_normal and fill_uniform: moments and range", "[kernels][fill]") {
  const std::int64_t n = 200000;
  const Tensor t = Tensor::empty({n}, DType::kF64);
  const auto moments = [&] {
    double m[4] = {};
    const auto v = t.to_vector<double>();
    for (const double x : v) m[0] += x / static_cast<double>(n);
    for (const double x : v)
      for (int k = 1; k < 4; ++k) m[k] += std::pow(x - m[0], k + 1) / static_cast<double>(n);
    return std::vector<double>(m, m + 4);
  };
  fill_normal(t, 1, 0.5, 3, 4);
  auto m = moments();
  CHECK(m[0] == Approx(1).margin(0.005));
  CHECK(m[1] == Approx(0.25).margin(0.004));
  CHECK(m[2] == Approx(0).margin(0.005));
  CHECK(m[3] == Approx(3 * 0.0625).margin(0.01));
  fill_uniform(t, -1, 1, 3, 4);
  m = moments();
  CHECK(m[0] == Approx(0).margin(0.006));
  CHECK(m[1] == Approx(1.0 / 3).margin(0.004));
  CHECK(m[3] == Approx(0.2).margin(0.004));
  std::int64_t outside = 0;
  for (const double x : t.to_vector<double>()) outside += !(x >= -1 && x < 1);
  CHECK(outside == 0);
  fill_normal(t, 2, 0, 3, 4);
  CHECK(t.to_vector<double>()[5] == 2);
}

TEST_CASE("fill: errors say what came", "[kernels][fill]") {
  const Tensor ints = Tensor::zeros({2}, DType::kI32), x = Tensor::zeros({2}, DType::kF32);
  CHECK(error_of([&] { fill(Tensor{}, 1); }) == "fill: t is undefined");
  CHECK(error_of([&] { fill(ints, 0.5); }) == "fill: t is int32, which does not hold 0.5");
  CHECK(error_of([&] { fill(ints, 3e9); }) == "fill: t is int32, which does not hold 3e+09");
  CHECK(error_of([&] { fill(ints, NAN); }) == "fill: t is int32, which does not hold nan");
  CHECK(error_of([&] { fill_normal(ints, 0, 1, 0, 0); }) ==
        "fill_normal: t must be of floating dtype, got int32");
  CHECK(error_of([&] { fill_normal(x, 0, -1, 0, 0); }) ==
        "fill_normal: expected a finite mean and std >= 0, got 0 and -1");
  CHECK(error_of([&] { fill_uniform(x, 1, 0, 0, 0); }) ==
        "fill_uniform: expected low <= high, got 1 and 0");
}

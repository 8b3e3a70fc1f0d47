#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <accrue/core/isa.h>
#include <accrue/core/parallel.h>
#include <accrue/kernels/accumulate/accumulate.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/kernels/exact_accumulate/exact_accumulate.h>
#include <accrue/kernels/fill/fill.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
using Numbers = std::vector<std::int64_t>;

std::vector<double> doubles(const Tensor& t) {
  return visit_float(t.dtype(), [&]<class T>() {
    std::vector<double> out;
    for (const T v : t.to_vector<T>()) {
      if constexpr (std::is_same_v<T, bfloat16>)
        out.push_back(static_cast<double>(static_cast<float>(v)));
      else
        out.push_back(static_cast<double>(v));
    }
    return out;
  });
}
Tensor numbers(const Numbers& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}
std::int64_t bits(double v) { return std::bit_cast<std::int64_t>(v); }

// One tensor's sum with its exponents and what it observed.
struct Sum {
  Tensor sum, exponents, observed = numbers({0});
  Sum(std::int64_t n, std::int64_t exponent, std::int64_t leaf_bits)
      : sum(Tensor::empty({n}, DType::kI64)), exponents(numbers({exponent, leaf_bits})) {}
  void add(const Tensor& leaf, bool first) const {
    const ExactItem items[] = {{sum.view(), leaf, 0, first}};
    exact_accumulate(items, exponents, observed);
  }
  Tensor unfold(DType dtype) const {
    Tensor out = Tensor::empty({sum.numel()}, dtype);
    const ExactResult items[] = {{out.view(), sum, 0}};
    exact_unfold(items, exponents, observed);
    return out;
  }
};
}  // namespace

TEST_CASE("exact_accumulate: many tensors of every dtype and ragged size, on every instruction set",
          "[kernels][exact_accumulate]") {
  const Isa best = current_isa();
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best) continue;
    set_isa(isa);
    std::vector<Tensor> sums, leaves;
    std::vector<Numbers> want;
    std::vector<ExactItem> items;
    Numbers exponents, most;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64})
      for (const std::int64_t n : {0, 1, 7, 8, 33, 8192, 20001})
        for (const bool first : {true, false})
          for (const std::int64_t shift : {0, 1}) {  // 1: bases that no wide access can take
            const auto number = static_cast<std::uint64_t>(items.size());
            const Tensor block = Tensor::empty({n + shift}, dtype);
            fill_uniform(block, -2, 2, 1, number);
            Numbers old(static_cast<std::size_t>(n + shift), 7 - (std::int64_t{1} << 45));
            sums.push_back(Tensor::from(old, {n + shift}).window(shift, {n}));
            leaves.push_back(block.window(shift, {n}));
            exponents.push_back(1 + static_cast<std::int64_t>(number % 9) * 10);
            items.push_back({sums.back().view(), leaves.back(), static_cast<int>(number), first});
            Numbers w;
            double largest = 0;
            for (const double v : doubles(leaves.back())) {
              const double units =
                  std::nearbyint(std::ldexp(v, static_cast<int>(62 - 12 - exponents.back())));
              w.push_back(static_cast<std::int64_t>(units) + (first ? 0 : old[0]));
              largest = std::max(largest, std::abs(v));
            }
            want.push_back(w);
            most.push_back(bits(largest));
          }
    exponents.push_back(12);
    const Tensor observed = numbers(Numbers(most.size(), 0));
    exact_accumulate(items, numbers(exponents), observed);
    CHECK(observed.to_vector<std::int64_t>() == most);
    for (std::size_t i = 0; i < items.size(); ++i) {
      INFO("item " << i << ", " << name_of(isa));
      CHECK(sums[i].to_vector<std::int64_t>() == want[i]);
    }
  }
  set_isa(best);
}

TEST_CASE("exact_unfold: one rounding, into float32 and float64", "[kernels][exact_accumulate]") {
  const Numbers sums{0,
                     1,
                     -1,
                     (std::int64_t{1} << 24) + 1,
                     -((std::int64_t{1} << 24) + 3),
                     (std::int64_t{1} << 53) + 1,
                     std::int64_t{1} << 62};
  for (const std::int64_t exponent : {-60, 0, 20}) {
    const Sum s(7, exponent, 13);
    s.sum.copy_from(numbers(sums));
    const double unit = std::ldexp(1.0, static_cast<int>(exponent + 13 - 62));
    std::vector<float> narrow;
    std::vector<double> wide;
    for (const std::int64_t q : sums) {
      wide.push_back(static_cast<double>(q) * unit);
      narrow.push_back(static_cast<float>(wide.back()));
    }
    CHECK(s.unfold(DType::kF32).to_vector<float>() == narrow);
    CHECK(s.unfold(DType::kF64).to_vector<double>() == wide);
  }
}

TEST_CASE("exact_accumulate: the same bits in every order and for any thread count",
          "[kernels][exact_accumulate]") {
  const std::int64_t n = 20011, count = 12;
  std::vector<Tensor> leaves;
  for (std::int64_t k = 0; k < count; ++k) {
    leaves.push_back(Tensor::empty({n}, DType::kF32));
    fill_normal(leaves.back(), 0, 1, 3, static_cast<std::uint64_t>(k));
  }
  const int threads = num_threads();
  std::mt19937 random(1);
  std::vector<Numbers> results;
  for (const int t : {1, 2, 7}) {
    set_num_threads(t);
    std::shuffle(leaves.begin(), leaves.end(), random);
    const Sum s(n, 3, 12);
    for (std::size_t k = 0; k < leaves.size(); ++k) s.add(leaves[k], k == 0);
    results.push_back(s.sum.to_vector<std::int64_t>());
    results.back().push_back(s.observed.to_vector<std::int64_t>()[0]);
  }
  set_num_threads(threads);
  CHECK(results[1] == results[0]);
  CHECK(results[2] == results[0]);
}

TEST_CASE("exact_accumulate: what is not finite is seen, and becomes NaN",
          "[kernels][exact_accumulate]") {
  for (const float bad : {NAN, INFINITY, -INFINITY, -NAN}) {
    for (const std::size_t place : {0u, 5u, 9u}) {
      std::vector<float> values(10, 1.0f);
      values[place] = bad;
      const Sum s(10, 1, 12);
      s.add(Tensor::from(std::vector<float>(10, 1.0f), {10}), true);
      s.add(Tensor::from(values, {10}), false);
      s.add(Tensor::from(std::vector<float>(10, 1.0f), {10}), false);
      CHECK(s.observed.to_vector<std::int64_t>()[0] >= kExactInfinite);
      for (const float v : s.unfold(DType::kF32).to_vector<float>()) CHECK(std::isnan(v));
    }
  }
  const Sum s(2, 1, 12);
  s.add(Tensor::from(std::vector<float>{-3.0f, 1e30f}, {2}), true);
  CHECK(s.observed.to_vector<std::int64_t>()[0] == bits(1e30f));
}

// The table of docs/numerics.md: 4096 leaves, elements of several sizes in one tensor.
TEST_CASE("exact_accumulate: the error of a sum, beside float32's", "[kernels][exact_accumulate]") {
  const bool cpu = default_device().is_cpu();
  const std::int64_t per_scale = cpu ? 256 : 32, leaves = cpu ? 4096 : 256;
  const std::vector<double> scales{1, 1e-2, 1e-4, 1e-6, 1e-8};
  const std::int64_t n = per_scale * static_cast<std::int64_t>(scales.size());
  std::vector<double> want(static_cast<std::size_t>(n), 0.0), size = want;
  std::vector<float> values(want.size());
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const Sum s(n, 7, 12);  // 6 bits above the largest leaf
  const Tensor f32 = Tensor::empty({n}, DType::kF32), leaf = Tensor::empty({n}, DType::kF32);
  for (std::int64_t k = 0; k < leaves; ++k) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] =
          static_cast<float>(scales[i / static_cast<std::size_t>(per_scale)] * uniform(random));
      want[i] += static_cast<double>(values[i]);
    }
    leaf.copy_from_host(values.data());
    s.add(leaf, k == 0);
    const AccumulateItem items[] = {{f32.view(), leaf, 1.0f, k == 0 ? 0.0f : 1.0f}};
    accumulate(items);
  }
  // Relative to the size of such a sum, sqrt(leaves / 3) of the scale, as a root mean square.
  const auto errors = [&](const Tensor& sum) {
    const auto got = doubles(sum);
    std::vector<double> out;
    for (std::size_t c = 0; c < scales.size(); ++c) {
      double square = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(per_scale); ++i) {
        const std::size_t at = c * static_cast<std::size_t>(per_scale) + i;
        square += (got[at] - want[at]) * (got[at] - want[at]);
      }
      out.push_back(std::sqrt(square / static_cast<double>(per_scale)) /
                    (scales[c] * std::sqrt(static_cast<double>(leaves) / 3)));
    }
    return out;
  };
  const auto exact = errors(s.unfold(DType::kF32)), plain = errors(f32);
  const std::vector<double> allowed{4e-8, 4e-8, 4e-8, 1e-7, 8e-6};
  for (std::size_t c = 0; c < scales.size(); ++c) {
    UNSCOPED_INFO("scale " << scales[c] << ": exact " << exact[c] << ", float32 " << plain[c]);
    CHECK(exact[c] < allowed[c]);
    if (c < 3) CHECK(exact[c] < plain[c] / 3);
  }
}

// B42 once more, with grains of bfloat16 activations: gradients reach the sums in float32.
TEST_CASE("B42: 4096 bfloat16 leaves add up as exactly as float32 can say",
          "[kernels][exact_accumulate]") {
  const std::int64_t leaves = default_device().is_cpu() ? 4096 : 512;
  const Tensor one = Tensor::empty({3}, DType::kBF16), small = Tensor::empty({3}, DType::kBF16);
  fill(one, 1);
  fill(small, 0.001);
  const double step = doubles(small)[0];
  const Sum ones(3, 7, 12), grown(3, 7, 12);
  grown.add(one, true);
  for (std::int64_t i = 0; i < leaves; ++i) {
    ones.add(one, i == 0);
    if (i > 0) grown.add(small, false);
  }
  CHECK(ones.unfold(DType::kF32).to_vector<float>() ==
        std::vector<float>(3, static_cast<float>(leaves)));
  const auto want = static_cast<float>(1 + static_cast<double>(leaves - 1) * step);
  CHECK(grown.unfold(DType::kF32).to_vector<float>() == std::vector<float>(3, want));
}

TEST_CASE("exact_accumulate: errors that name the item", "[kernels][exact_accumulate]") {
  const Tensor sum = Tensor::zeros({3}, DType::kI64), leaf = Tensor::zeros({3}, DType::kF32);
  const Tensor exponents = numbers({1, 12}), observed = numbers({0});
  const auto error = [&](const ExactItem& item, const Tensor& e) {
    const ExactItem items[] = {item};
    return error_of([&] { exact_accumulate(items, e, observed); });
  };
  exact_accumulate({}, exponents, observed);
  exact_unfold({}, exponents, observed);
  CHECK(error({{}, leaf}, exponents) == "exact_accumulate: item 0: a tensor is undefined");
  CHECK(error({leaf.view(), leaf}, exponents) ==
        "exact_accumulate: item 0: sum must be int64, got float32");
  CHECK(error({sum.view(), sum}, exponents) ==
        "exact_accumulate: item 0: leaf must be of floating dtype, got int64");
  CHECK(error({sum.view(), Tensor::zeros({2}, DType::kF32)}, exponents) ==
        "exact_accumulate: item 0: (3,) and (2,) must have as many elements");
  CHECK(error({sum.view(), leaf, 1}, exponents) ==
        "exact_accumulate: item 0: number 1 is not below 1");
  CHECK(error({sum.view(), leaf}, observed) ==
        "exact_accumulate: exponents are (1,), observed (1,); there must be one exponent more, for "
        "the number of leaves");
  CHECK(error({sum.view(), leaf}, Tensor::zeros({2}, DType::kF32)) ==
        "exact_accumulate: exponents and observed must be int64, got float32 and int64");
  const ExactResult results[] = {{Tensor::zeros({3}, DType::kBF16).view(), sum}};
  CHECK(error_of([&] { exact_unfold(results, exponents, observed); }) ==
        "exact_unfold: item 0: dst must be float32 or float64, got bfloat16");
}

#include <algorithm>
#include <cmath>
#include <vector>
#include <accrue/data/sample_order.h>
#include "tests/support/cases.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::data;
using accrue::test::error_of;

namespace {
std::vector<std::int64_t> epoch_of(const SampleOrder& order, std::int64_t epoch) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(order.size()));
  for (std::int64_t i = 0; i < order.size(); ++i)
    samples[static_cast<std::size_t>(i)] = order(epoch * order.size() + i);
  return samples;
}
bool is_permutation_of_all(std::vector<std::int64_t> samples) {
  std::sort(samples.begin(), samples.end());
  for (std::size_t i = 0; i < samples.size(); ++i)
    if (samples[i] != static_cast<std::int64_t>(i)) return false;
  return true;
}
}  // namespace

TEST_CASE("sample order: every epoch holds each sample once", "[data][sample_order][cpu]") {
  for (const std::int64_t size :
       {1,  2,   3,   4,   5,   7,    8,    15,   16,   17,   63,    64,
        65, 100, 255, 256, 257, 1000, 1023, 1024, 1025, 4096, 10007, 65536})
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}})
      for (const std::int64_t epoch : {0, 1, 1000000}) {
        const SampleOrder order(size, seed);
        if (!is_permutation_of_all(epoch_of(order, epoch)))
          FAIL("size " << size << " seed " << seed << " epoch " << epoch);
      }
}

TEST_CASE("sample order: seeds and epochs give different orders", "[data][sample_order][cpu]") {
  const auto a = epoch_of(SampleOrder(1000, 1), 0);
  CHECK(a == epoch_of(SampleOrder(1000, 1), 0));
  CHECK(a != epoch_of(SampleOrder(1000, 2), 0));
  CHECK(a != epoch_of(SampleOrder(1000, 1), 1));
  CHECK(a != epoch_of(SampleOrder(1000, 1, false), 0));
}

TEST_CASE("sample order: unshuffled it counts", "[data][sample_order][cpu]") {
  const SampleOrder order(5, 9, false);
  for (std::int64_t n = 0; n < 12; ++n) CHECK(order(n) == n % 5);
  CHECK(order.epoch(4) == 0);
  CHECK(order.epoch(5) == 1);
}

// A run is resumed by its position alone, so these numbers must never change.
TEST_CASE("sample order: fixed for ever", "[data][sample_order][cpu]") {
  const SampleOrder order(1000, 42);
  const std::vector<std::int64_t> first{order(0), order(1), order(2), order(3)};
  CHECK(first == std::vector<std::int64_t>{236, 300, 942, 384});
  CHECK(order(1000) == 83);
  CHECK(SampleOrder(std::int64_t{1} << 40, 7)(123456789) == 477924853574);
}

TEST_CASE("sample order: each sample is equally likely at each place",
          "[data][sample_order][cpu]") {
  // Chi-square of (place, sample) counts over epochs; (n-1)^2 degrees of freedom, 6 sigma.
  for (const std::int64_t size : {2, 3, 5, 16, 33}) {
    const std::int64_t epochs = test::cases(4000, 1000);
    const SampleOrder order(size, 3);
    std::vector<double> counts(static_cast<std::size_t>(size * size));
    for (std::int64_t e = 0; e < epochs; ++e)
      for (std::int64_t i = 0; i < size; ++i)
        counts[static_cast<std::size_t>(i * size + order(e * size + i))] += 1;
    const double expected = static_cast<double>(epochs) / static_cast<double>(size);
    double chi2 = 0;
    for (const double c : counts) chi2 += (c - expected) * (c - expected) / expected;
    const double freedom = static_cast<double>((size - 1) * (size - 1));
    INFO("size " << size << " chi2 " << chi2 << " freedom " << freedom);
    CHECK(chi2 < freedom + 6 * std::sqrt(2 * freedom) + 6);
  }
}

TEST_CASE("sample order: neighbours are not correlated", "[data][sample_order][cpu]") {
  const std::int64_t size = 50000;
  const auto samples = epoch_of(SampleOrder(size, 11), 0);
  const double mean = static_cast<double>(size - 1) / 2;
  double lag = 0, place = 0, variance = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double x = static_cast<double>(samples[i]) - mean;
    variance += x * x;
    place += x * (static_cast<double>(i) - mean);
    if (i + 1 < samples.size()) lag += x * (static_cast<double>(samples[i + 1]) - mean);
  }
  const double bound = 5 / std::sqrt(static_cast<double>(size));
  CHECK(std::abs(lag / variance) < bound);
  CHECK(std::abs(place / variance) < bound);
}

TEST_CASE("sample order: huge datasets take no memory", "[data][sample_order][cpu]") {
  const std::int64_t size = std::int64_t{1} << 62;
  const SampleOrder order(size, 5);
  for (std::int64_t n = 0; n < 1000; ++n) {
    const std::int64_t s = order(n * 4611686018427387);
    if (s < 0 || s >= size) FAIL("position " << n);
  }
}

TEST_CASE("sample order: errors say what came", "[data][sample_order][cpu]") {
  CHECK(error_of([] { SampleOrder(0, 1); }) ==
        "SampleOrder: the number of samples must be 1 ... 2^62, got 0");
  CHECK(error_of([] { (void)SampleOrder(5, 1)(-1); }) ==
        "SampleOrder: the position must not be negative, got -1");
}

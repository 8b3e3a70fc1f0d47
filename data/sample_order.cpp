#include <algorithm>
#include <bit>
#include <accrue/core/error.h>
#include <accrue/core/random.h>
#include <accrue/data/sample_order.h>

namespace accrue::data {
namespace {
constexpr int kRounds = 8;
// Halves below four bits give too few different networks; cycle walking makes up for the domain.
constexpr int kMinHalfBits = 4;
}  // namespace

SampleOrder::SampleOrder(std::int64_t size, std::uint64_t seed, bool shuffle)
    : size_(size), seed_(seed), shuffle_(shuffle), half_bits_(kMinHalfBits) {
  ACCRUE_CHECK(size >= 1 && size <= std::int64_t{1} << 62,
               "SampleOrder: the number of samples must be 1 ... 2^62, got ", size);
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size - 1)));
  half_bits_ = std::max(kMinHalfBits, (bits + 1) / 2);
}

std::int64_t SampleOrder::operator()(std::int64_t position) const {
  ACCRUE_CHECK(position >= 0, "SampleOrder: the position must not be negative, got ", position);
  const std::int64_t within = position % size_;
  if (!shuffle_) return within;
  const auto e = static_cast<std::uint64_t>(epoch(position));
  auto x = static_cast<std::uint64_t>(within);
  do x = permute(x, e);
  while (x >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(x);
}

std::uint64_t SampleOrder::permute(std::uint64_t x, std::uint64_t epoch) const {
  const std::uint64_t key = random_key(seed_, epoch);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = x >> half_bits_, right = x & mask;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const auto random =
        philox4x32({static_cast<std::uint32_t>(right), round, 0, 0},
                   {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
    const std::uint64_t mixed = (left ^ random[0]) & mask;
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}
}  // namespace accrue::data

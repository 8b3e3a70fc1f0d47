#pragma once
// The order of samples: a pure function of (seed, position). There is no table and no state, so a
// run is resumed by its position, and batch size, micro-batches and ranks change nothing.
#include <cstdint>

namespace accrue::data {

/// Positions 0, 1, 2, ... run over the epochs: position n lies in epoch n / size. Every epoch holds
/// each sample once. Shuffled: a permutation per epoch, made by a balanced Feistel network of eight
/// Philox rounds over the next power of four, with cycle walking (Black and Rogaway: "Ciphers with
/// arbitrary finite domains", CT-RSA 2002). O(1) memory and time.
class SampleOrder {
 public:
  /// `size`: samples of one epoch, 1 ... 2^62.
  SampleOrder(std::int64_t size, std::uint64_t seed, bool shuffle = true);
  std::int64_t size() const { return size_; }
  std::uint64_t seed() const { return seed_; }
  bool shuffled() const { return shuffle_; }
  std::int64_t epoch(std::int64_t position) const { return position / size_; }
  /// The sample at a position: 0 ... size() - 1.
  std::int64_t operator()(std::int64_t position) const;

 private:
  std::uint64_t permute(std::uint64_t x, std::uint64_t epoch) const;
  std::int64_t size_;
  std::uint64_t seed_;
  bool shuffle_;
  int half_bits_;
};
}  // namespace accrue::data

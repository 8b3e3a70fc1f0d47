#pragma once
// How CUDA sorts positions by a key: what an op and its kernels must agree on.
#include <bit>
#include <cstdint>

namespace accrue::kernels {

/// n pairs of 32-bit numbers, keys in [0, largest].
struct SortPlan {
  std::int64_t n = 0, largest = 0;
  static constexpr int kBits = 8;              // of a pass
  static constexpr std::int64_t kTile = 2048;  // pairs of a block
  constexpr std::int64_t tiles() const { return (n + kTile - 1) / kTile; }
  constexpr int passes() const {
    const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(largest)));
    return bits <= kBits ? 1 : (bits + kBits - 1) / kBits;
  }
  /// 32-bit numbers of the workspace: the pairs twice, and the counts of the tiles.
  constexpr std::int64_t workspace() const { return 4 * n + (std::int64_t{1} << kBits) * tiles(); }
};
}  // namespace accrue::kernels

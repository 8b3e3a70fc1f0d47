#pragma once
// What the benchmarks of dropout and residual_add share: p = 0.1 at site 3, seed 1, step 2, samples
// 0, 1, ...
#include <cmath>
#include <vector>
#include <accrue/core/random.h>
#include "benchmarks/bench.h"

namespace accrue::bench {

inline RandomState random_state(std::int64_t rows) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < rows; ++i) ids.push_back(i);
  return {Tensor::from(std::vector<std::int64_t>{1, 2}, {2}), Tensor::from(ids, {rows})};
}

/// What element e of a row is multiplied by, from the definition in kernels/dropout/dropout.h.
inline double dropout_factor(std::int64_t row, std::int64_t e) {
  constexpr std::uint32_t threshold = 6554;  // round(0.1 * 65536)
  const std::uint64_t k = random_key(1, 2);
  const auto w =
      philox4x32({static_cast<std::uint32_t>(e / 8), 3, static_cast<std::uint32_t>(row), 0},
                 {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(k >> 32)});
  const std::uint32_t bits = w[static_cast<std::size_t>(e % 8 / 2)] >> (e % 2 ? 16 : 0) & 0xffffu;
  return bits >= threshold ? 65536.0 / (65536.0 - threshold) : 0.0;
}
}  // namespace accrue::bench

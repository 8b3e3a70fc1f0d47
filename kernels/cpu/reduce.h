#pragma once
// Sums over a dimension, with an error that hardly grows with its length. Included after
// simd_begin.h.
#include <accrue/kernels/reduce.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {

/// The sum of value(i, part) over [begin, end): runs of 1024 in C, several lanes side by side; the
/// runs in float64.
template <class C, class Value>
ACCRUE_INLINE double sum_range(std::int64_t begin, std::int64_t end, Value value) {
  constexpr std::int64_t kRun = 1024, kStep = 4 * kLanes<C>;
  double total = 0;
  for (std::int64_t at = begin; at < end; at += kRun) {
    const std::int64_t n = std::min(kRun, end - at);
    Vec<C> sum[4] = {};
    std::int64_t i = 0;
    for (; i + kStep <= n; i += kStep)
      for (int k = 0; k < 4; ++k) sum[k] += value(at + i + k * kLanes<C>, Whole{});
    vector_loop<C>(n - i, [&](std::int64_t j, auto part) {
      sum[0] += keep<C>(value(at + i + j, part), part, C(0));
    });
    total += static_cast<double>(sum_lanes<C>((sum[0] + sum[1]) + (sum[2] + sum[3])));
  }
  return total;
}

/// put(o * inner + i, sum over k of value((o * n + k) * inner + i)), the sum as a double. value
/// gets a flat index and how much of a vector to read. `workspace` holds plan.workspace() numbers.
template <class C, class Value, class Put>
ACCRUE_INLINE void reduce(const ReducePlan& plan, double* workspace, Value value, Put put) {
  const std::int64_t n = plan.n, inner = plan.inner;
  if (n == 0) {
    for (std::int64_t j = 0; j < plan.outer * inner; ++j) put(j, 0.0);
    return;
  }
  constexpr std::int64_t kTile = 1024, kRun = 16;
  const std::int64_t block = plan.block(), blocks = plan.blocks();
  const std::int64_t tiles = chunk_count(inner, kTile), units = plan.outer * blocks * tiles;
  const std::int64_t unit_size = std::min(n, block) * std::min(inner, kTile);
  const std::int64_t grain = unit_size > 0 ? std::max<std::int64_t>(1, 16384 / unit_size) : 1;
  parallel_for(units, grain, [&](std::int64_t first_unit, std::int64_t last_unit) {
    for (std::int64_t unit = first_unit; unit < last_unit; ++unit) {
      const std::int64_t tile = unit % tiles, part_of_n = unit / tiles;  // outer * blocks + block
      const std::int64_t o = part_of_n / blocks, k0 = part_of_n % blocks * block;
      const std::int64_t k1 = std::min(n, k0 + block);
      if (inner == 1) {
        const double s = sum_range<C>(o * n + k0, o * n + k1, value);
        blocks > 1 ? void(workspace[part_of_n] = s) : put(o, s);
        continue;
      }
      const std::int64_t first = tile * kTile, width = std::min(kTile, inner - first);
      const std::int64_t padded = chunk_count(width, kLanes<C>) * kLanes<C>;
      alignas(64) C total[kTile], run[kTile];
      std::fill(total, total + padded, C(0));
      for (std::int64_t k = k0; k < k1; k += kRun) {
        std::fill(run, run + padded, C(0));
        for (std::int64_t r = k; r < std::min(k1, k + kRun); ++r)
          vector_loop<C>(width, [&](std::int64_t i, auto part) {
            store(run + i, load<C>(run + i) + value((o * n + r) * inner + first + i, part));
          });
        for (std::int64_t i = 0; i < padded; i += kLanes<C>)
          store(total + i, load<C>(total + i) + load<C>(run + i));
      }
      for (std::int64_t i = 0; i < width; ++i)
        blocks > 1 ? void(workspace[part_of_n * inner + first + i] = static_cast<double>(total[i]))
                   : put(o * inner + first + i, static_cast<double>(total[i]));
    }
  });
  if (blocks == 1) return;
  parallel_for(plan.outer * inner, 1024, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
      const double* from = workspace + j / inner * blocks * inner + j % inner;
      double s = 0;
      for (std::int64_t b = 0; b < blocks; ++b) s += from[b * inner];
      put(j, s);
    }
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME

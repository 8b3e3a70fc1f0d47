#pragma once
// Which blocks of a chain compute again what they do not keep: the least time within a budget.
#include <array>
#include <cstdint>
#include <optional>
#include <vector>
#include <accrue/core/activation_policy.h>

namespace accrue::optim::detail {

/// One way to run one block.
struct BlockChoice {
  Recompute what = Recompute::kNone;
  std::int64_t keep = 0, spike = 0;  // see MetaRun
  double seconds = 0;
};
/// By block: what may be chosen. Never empty.
using Choices = std::vector<std::vector<BlockChoice>>;

/// The choices with the least sum of seconds, under
///   sum_{j<i} keep_j + spike_i <= budget for every i,  and  sum_i keep_i + head <= budget.
/// Nothing if there are none. Dynamic programming over the blocks: of all ways to run the first i,
/// only those matter that no other beats in both bytes kept and seconds (at most 4096 are followed,
/// so the result is the best unless a chain has more).
std::optional<std::vector<Recompute>> fastest_chain(const Choices& blocks, std::int64_t head,
                                                    std::int64_t budget);

/// The least budget for which there are choices, and these.
struct SmallestChain {
  std::int64_t budget = 0;
  std::vector<Recompute> blocks;
};
SmallestChain smallest_chain(const Choices& blocks, std::int64_t head);
}  // namespace accrue::optim::detail

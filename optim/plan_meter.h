#pragma once
// One meta run, measured: its peak, what every block of the chain keeps and needs at most, and the
// seconds that its kernels would take.
#include <cstdint>
#include <vector>
#include <accrue/optim/plan.h>

namespace accrue::optim::detail {

/// A chain of blocks between an embedding and a head. All bytes are exact. With keep_i what block i
/// holds between its forward and its backward,
///   peak = max(floor, sum_i keep_i + head, max_i (sum_{j<i} keep_j + spike_i)).
struct MetaRun {
  Knobs knobs;
  std::int64_t peak = 0;
  CategoryBytes at_peak{};
  std::vector<std::int64_t> keep, spike;  // by block
  std::int64_t head = 0;                  // the most between the last block's forward and backward
  std::int64_t floor = 0;                 // the most outside of the chain
  std::int64_t always = 0;                // live when the first block begins
  std::vector<double> block_seconds;      // of a step of the whole logical batch
  double rest_seconds = 0;                // of all other computing in it
  double waiting_seconds = 0;             // for other ranks
  double seconds() const;
};

MetaRun run_on_meta(const PlanRequest& request, const MetaStep& step, const Knobs& knobs);
}  // namespace accrue::optim::detail

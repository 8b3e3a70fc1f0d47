#pragma once
// The plan: how a logical batch fits a budget of memory, found before the first step on the meta
// device.
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <accrue/core/activation_policy.h>
#include <accrue/core/allocator.h>
#include <accrue/core/shard.h>
#include <accrue/optim/rates.h>

namespace accrue::optim {

/// What may be chosen freely, because it changes no result.
struct Knobs {
  std::int64_t micro = 1;  // samples of a micro-batch
  ActivationPolicy activations{};
  ShardStage stage = ShardStage::kNone;  // of several ranks: for ParameterSet::allocate()
  ReducePolicy policy = ReducePolicy::kKeepFull;
  bool operator==(const Knobs&) const = default;
};

/// One run of the whole program (of one rank: with dist::meta_communicator) with these knobs on
/// PlanRequest::device: its parameters, its optimizer, and one step over the first `samples`
/// samples (the inputs of the whole logical batch exist all the time), with one Window::add() per
/// micro-batch and Optimizer::step(); whatever else the program allocates later comes behind.
using MetaStep = std::function<void(const Knobs& knobs, std::int64_t samples)>;

struct PlanRequest {
  Device device = Device::meta();  // meta, of the kind of device that will run
  std::int64_t batch = 1;          // samples of the logical batch
  std::int64_t tokens = 1;         // of one sample
  std::int64_t budget = 0;         // bytes; 0: none
  /// Module paths of the blocks, in order: "transformer.h.0", ... Empty: there is no chain of
  /// blocks, and nothing is computed again.
  std::vector<std::string> blocks{};
  // What the caller insists on.
  std::int64_t micro = 0;  // 0: chosen; without a budget the smaller of 8 and the batch
  std::optional<std::vector<Recompute>> recompute{};
  std::optional<std::int64_t> loss_rows{}, mlp_rows{};
  std::int64_t fixed_rows = 0;  // of the recipe: see ActivationPolicy
  /// Inputs of recomputed blocks wait in the host's memory. Unset: only on CUDA, and only where
  /// nothing fits without. On a GPU copies run beside the computing; what does not fit beside it
  /// counts (Rates::host).
  std::optional<bool> offload{};
  /// Ranks that each have such a batch. Then what they divide (Knobs::stage and policy) is chosen
  /// too: of what fits, the fastest. Gradients and values travel as many bytes as these blocks
  /// have (gradients in exact mode: 8 per parameter), `window_bytes` of the gradients at a time
  /// (Sharding::window). 0: nothing travels beside computing.
  int ranks = 1;
  std::int64_t gradient_bytes = 0, value_bytes = 0, window_bytes = 0;
  /// With ReducePolicy::kKeepFull gradients leave after the last backward and not beside it: exact
  /// numerics.
  bool gradients_at_end = false;
  std::optional<ShardStage> stage{};
  std::optional<ReducePolicy> policy{};
  Rates rates{};
};

/// Knobs that were run on meta: nothing here is estimated but the seconds.
struct Candidate {
  Knobs knobs;
  std::int64_t peak = 0;
  CategoryBytes at_peak{};
  double seconds = 0;  // of one step, by the rates
  bool fits = true;
};

struct Plan {
  PlanRequest request;
  Candidate chosen;
  std::vector<Candidate> candidates;  // `chosen` among them; those that fit first, by seconds
  // At the chosen micro-batch, if the model is a chain. By Recompute: what all blocks keep between
  // forward and backward, and seconds of a step spent in them.
  std::array<std::int64_t, 3> kept{};
  std::array<double, 3> block_seconds{};
  struct LossRows {
    std::int64_t rows = 0, bytes = 0;  // what exists at once besides what blocks keep and `always`
    double seconds = 0;                // of a step, outside of the blocks
  };
  std::vector<LossRows> loss_rows;
  std::int64_t always = 0;  // live before the first block: parameters, gradients, optimizer, batch
  int meta_runs = 0;
};

/// The backward of a micro-batch, and how many like it a step has.
struct PassSeconds {
  double backward = 0, times = 1;
};
/// Seconds of a step in which collectives are waited for. A rank sends and receives (ranks - 1) /
/// ranks of a block for a reduce-scatter or an all-gather, twice that for an all-reduce, at
/// rates.link bytes per second. An exchange of `e` seconds that may run beside `c` seconds of
/// computing costs
///   max(e / n, e - c (1 - 1 / n))
/// with n windows in the block: the first can leave when it is complete, c / n later, and nothing
/// computes beside the last. So do gradients beside the backward of the last micro-batch, with
/// kReduceEach of each; not those of divided parameters with kKeepFull. Values have nothing beside
/// them: they are gathered after the update, or where they are divided once in each forward and
/// once in each backward. (One window is gathered ahead; on the other hand the ranks agree before
/// each, which is not counted, nor is what the link takes of the processor.)
double communication_seconds(const PlanRequest& request, const Knobs& knobs,
                             std::span<const PassSeconds> passes);

/// Finds the fastest knobs whose peak is within the budget: micro-batch sizes that need a different
/// number of passes; what each block recomputes, by dynamic programming over what it keeps and what
/// it costs (Recompute by block, so blocks may differ); rows of logits and of MLPs, powers of two.
/// A peak is that of a meta run with exactly these knobs, so it is exact to the byte. Without a
/// budget nothing is computed again.
/// Throws OutOfMemory when nothing fits: it names the smallest budget that works, and its knobs.
/// While it runs, this thread's kernels and steps are observed and meta's timeline is recorded.
Plan plan(const PlanRequest& request, const MetaStep& step);

/// A table for people: what is always there, what each choice costs and saves, the candidates, the
/// choice and the reason.
std::string to_string(const Plan& plan);
/// "micro-batch 4, blocks recomputed 3 of 12 (first 3), 1024 rows of logits at a time"
std::string to_string(const Knobs& knobs, std::size_t blocks);
}  // namespace accrue::optim

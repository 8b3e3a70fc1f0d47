#pragma once
// Optimizers: one kernel over the flat blocks, after one kernel for norm, clip and the check for
// finite numbers.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <accrue/kernels/adamw/adamw.h>
#include <accrue/kernels/sgd/sgd.h>
#include <accrue/optim/flat_part.h>
#include <accrue/optim/host_state.h>
#include <accrue/optim/schedule.h>
#include <accrue/optim/window.h>

namespace accrue::optim {

using AdamWOptions = kernels::AdamwOptions;
using SgdOptions = kernels::SgdOptions;

/// What a step did. Reading it waits for the device; step() itself does not.
struct StepReport {
  std::int64_t step = 0;     // updates done so far
  std::int64_t skipped = 0;  // windows skipped so far
  bool skip = false;  // this one was: a loss or gradient was not finite, or nothing was counted
  double loss = 0;    // of the logical batch: sum / weight
  double weight = 0;
  double norm = 0;  // of the mean gradient, before clipping
  double lr = 0;
};

/// A tensor of an optimizer's state, for checkpoints and hashes.
struct NamedTensor {
  std::string name;
  Tensor tensor;
  /// Which elements of the set it holds, and where; the set has `total` of them. One piece, all of
  /// the set, where ranks do not divide the state.
  std::vector<ShardLayout::Piece> pieces{};
  std::int64_t total = 0;
};

/// The part that all optimizers share. Where ranks divide the set (Sharding), each has the moments
/// of its own part, updates that, and gets the other values from the other ranks, unless the values
/// are divided too; the norm has the same bits on every number of ranks. Then step() is a
/// collective: all ranks call it, after the gradients of their parts and the touched flags have
/// been summed over the ranks. Parameters that no micro-batch of the window touched are left alone:
/// no update, no decay, as PyTorch does where grad is None.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Divides the summed gradients by the summed weight, clips, updates, and resets the window.
  /// Gradients, loss or weight not finite, or weight 0: nothing changes but the count of skipped
  /// windows. An empty window is an error. Settles the window if that has not been done; when
  /// settle() returns false that is an error, after which the same grains can be added again. All
  /// memory that it needs is allocated before anything changes, or comes from workspace().
  void step(Window& window, Tensor workspace = {});
  /// What step() would allocate, enough for any window. For those who must know beforehand that
  /// there is enough.
  Tensor workspace() const;
  StepReport report() const;

  /// These hold from the next step on, in CUDA graphs that have captured kernels of a step too:
  /// they lie on the device, and the device is not waited for.
  void set_schedule(const Schedule& schedule);
  const Schedule& schedule() const { return settings_.schedule; }
  /// The largest norm of the mean gradient; above it the gradient is scaled by max_norm / (norm +
  /// 1e-6), as PyTorch's clip_grad_norm_. 0: no clipping.
  void set_max_norm(double max_norm);

  /// Everything that a resumed run needs besides the parameters: moments (padded, flat; of a
  /// divided set this rank's shard) and counters; where ranks divide the weights that it updates
  /// (the master weights, or the values of a set that has none) also those, "master". With
  /// StateOptions::on_host tensors are tensors of the cpu: call report()
  /// before reading them.
  const std::vector<NamedTensor>& state() const { return state_; }
  std::int64_t step_count() const { return report().step; }
  /// After loading: continues from these counters.
  void restore_counters(std::int64_t step, std::int64_t skipped);

 protected:
  Optimizer(ParameterSet& parameters, const Schedule& schedule, const StateOptions& state = {});
  /// One kernel over one part: there are several where the state is on the host, or divided.
  virtual void update(const FlatPart& part, const kernels::StepState* state) = 0;
  void add_state(const char* name);
  /// Writes settings_ to the device.
  void send_settings();
  ParameterSet& parameters_;
  kernels::StepState settings_;  // the hyperparameters in it; the other numbers are the device's
  Tensor step_state_;            // kernels::StepState as bytes

 private:
  void sum_squares(const Tensor& sums);
  void update_parts(const kernels::StepState* state);
  void gather_values();
  std::vector<NamedTensor> state_;
  std::vector<Tensor> moments_;
  std::vector<kernels::Segment> segments_, here_;
  std::optional<HostState> host_;
};

/// Adam with decoupled weight decay (Loshchilov, Hutter 2019), formulas and defaults as
/// torch.optim.AdamW:
///   p <- p (1 - lr wd);  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
///   p <- p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
/// wd applies to parameters whose `decay` flag is set. State: m and v, float32.
class AdamW final : public Optimizer {
 public:
  AdamW(ParameterSet& parameters, const Schedule& schedule, const AdamWOptions& options = {},
        const StateOptions& state = {});
  /// As set_schedule().
  void set_options(const AdamWOptions& options);
  const AdamWOptions& options() const { return settings_.adamw; }

 private:
  void update(const FlatPart& part, const kernels::StepState* state) override;
};

/// Stochastic gradient descent with momentum, dampening, Nesterov and coupled weight decay, as
/// torch.optim.SGD. State: the momentum buffer, when momentum is not 0.
class Sgd final : public Optimizer {
 public:
  Sgd(ParameterSet& parameters, const Schedule& schedule, const SgdOptions& options = {},
      const StateOptions& state = {});
  /// As set_schedule(). The momentum may neither become nor cease to be 0.
  void set_options(const SgdOptions& options);
  const SgdOptions& options() const { return settings_.sgd; }

 private:
  void update(const FlatPart& part, const kernels::StepState* state) override;
};
}  // namespace accrue::optim

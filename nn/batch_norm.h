#pragma once
// Batch normalisation over the logical batch, however it is cut into micro-batches.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>
#include <accrue/core/loss.h>
#include <accrue/core/parameter.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/batch_norm/batch_norm.h>

namespace accrue::nn {
class LogicalBatch;

/// Batch normalisation over all dimensions of x (N, C, ...) but the second. Parameters: weight (C)
/// and bias (C), not decayed. Running statistics: float64 (2, C), mean and unbiased variance, 0 and
/// 1 before the first batch; running <- (1 - momentum) running + momentum batch, once per logical
/// batch, also under recompute. A channel whose statistics are not finite leaves its own as they
/// are. Copies of the layer share parameters and statistics.
struct BatchNorm {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;
  double eps, momentum;
  std::string_view path;

  BatchNorm(ParameterSet& set, const std::string& name, std::int64_t channels, double eps = 1e-5,
            double momentum = 0.1);
  /// With the statistics of the batch, inside LogicalBatch::run(). Without a batch (null): with the
  /// running statistics, as constants; evaluation, or fine-tuning with frozen statistics.
  Tensor operator()(const Tensor& x, LogicalBatch* batch) const;
  /// (2, C), to read, save and load.
  Tensor running() const;
  std::int64_t batches_tracked() const;

 private:
  friend class LogicalBatch;
  struct State {
    Tensor running;
    std::int64_t tracked = 0;
  };
  std::shared_ptr<State> state_;
};

/// Runs the micro-batches of a logical batch as often as its batch norms need, so that statistics
/// and gradients are those of the whole batch. The statistics of a norm depend on those of the
/// norms before it, and its gradient sums on those of the norms after it. With K norms:
///   K forward passes without a tape, each for one norm's statistics;
///   K passes forward and backward, each for one norm's sums of dy and dy xhat, without gradients
///   of parameters; one pass forward and backward, whose losses go to `add`.
/// So 2 K + 1 passes over the data, with the activations of one micro-batch: exact, for few norms.
/// A single micro-batch is the whole batch: one pass.
///
///   nn::LogicalBatch batch(parameters);
///   batch.run(micro_batches, [&](std::int64_t i) { return model.loss(micro(i), &batch); },
///             [&](Tape& tape, const Loss& loss) { window.add(tape, loss); });
class LogicalBatch {
 public:
  explicit LogicalBatch(ParameterSet& parameters) : parameters_(parameters) {}
  LogicalBatch(const LogicalBatch&) = delete;
  LogicalBatch& operator=(const LogicalBatch&) = delete;

  /// `loss` is the forward pass of one micro-batch: it is called again and again and must be a pure
  /// function of the micro-batch, of parameters and of RandomStates. Every norm runs at most once
  /// in it (recompute may repeat it, tiles may not), in the same order in all micro-batches.
  /// `add` gets the tape and the loss of each micro-batch once, with the tape current.
  /// Throws what these throw; when a norm is used twice or only in a later pass; when a channel has
  /// fewer than 2 elements; and when a gradient of the set was written in a pass that makes none (a
  /// copy of a parameter's tensor was used instead of Parameter::value): reset() the window then.
  /// `keep`: whether what was added stands; false, and it must be run again, for a window in exact
  /// mode that asks for it:
  ///
  ///   while (!batch.run(micro_batches, loss, add, [&] { return window.settle(); })) {}
  ///
  /// Running statistics move only when it stands. Returns what `keep` said; true without it.
  bool run(std::int64_t micro_batches, const std::function<Loss(std::int64_t)>& loss,
           const std::function<void(Tape&, const Loss&)>& add,
           const std::function<bool()>& keep = {});

 private:
  friend struct BatchNorm;
  enum class Pass : std::uint8_t { kNone, kWhole, kMoments, kSums, kFinal };
  struct Norm {
    std::shared_ptr<BatchNorm::State> state;
    double momentum = 0;
    BatchMoments moments;
    Tensor sums;
    bool has_moments = false, has_sums = false, called = false;
  };
  Tensor apply(const BatchNorm& norm, const Tensor& x);
  Norm& find(const BatchNorm& norm);
  void forget_calls();
  void collect_moments(std::int64_t micro_batches, const std::function<Loss(std::int64_t)>& loss);
  void collect_sums(std::int64_t micro_batches, const std::function<Loss(std::int64_t)>& loss);
  void move_running();

  ParameterSet& parameters_;
  std::vector<Norm> norms_;  // in the order of their first call
  Pass pass_ = Pass::kNone;
  bool may_add_ = false;        // the first pass meets the norms
  std::size_t collecting_ = 0;  // of kMoments and kSums: the norm; npos: not met yet
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
};
}  // namespace accrue::nn

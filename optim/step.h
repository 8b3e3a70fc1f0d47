#pragma once
// One call for a logical step: cut into micro-batches, accumulate, clip, update; and again when
// memory runs out.
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <accrue/core/allocator.h>
#include <accrue/optim/optimizer.h>
#include <accrue/optim/window.h>

namespace accrue::optim {

class LogicalStep;

struct StepOptions {
  std::int64_t micro = 0;  // samples per micro-batch; 0: the whole batch at once
  std::int64_t grain = 1;  // exact numerics: samples per Window::add(); part of the recipe
  Numerics numerics = Numerics::kDefault;
  bool recover = true;  // false: OutOfMemory reaches the caller at once
  int grow_after = 16;  // good steps before a size that shrank tries to grow; 0: it stays
  /// With several ranks: says which of them had gradients that were not finite, and in which
  /// bucket. The host then waits for the device.
  bool find_not_finite = false;
  /// With several ranks: after every so many updates they compare the bits of their weights (an
  /// error on all that names who differs from the majority; what they divide has no second copy and
  /// is not compared). 0: never.
  int compare_every = 0;
};

/// What run() did. All but read() is known without waiting for the device.
struct BatchReport {
  std::vector<std::int64_t> micro_batches;  // their sizes, in order, as they were summed
  int retries = 0;                          // times that memory ran out and work was done again
  int restarts = 0;                         // of these, how often the whole window was
  int redone = 0;         // exact numerics: times the window was added again, exponents rose
  std::int64_t peak = 0;  // highest live bytes on the parameters' device, failed attempts included
  CategoryBytes at_peak{};  // what each category held then
  struct NotFinite {
    int rank = 0;
    std::string where;  // a bucket's name; in exact mode a parameter's
  };
  std::vector<NotFinite> not_finite;  // of StepOptions::find_not_finite; the same on all ranks
  /// Of the host's time, failed attempts included. On CUDA the host only enqueues.
  double forward_seconds = 0, backward_seconds = 0, optimizer_seconds = 0;

  /// Loss, weight, norm, learning rate and counters of this step. Waits for the device. An error
  /// once the LogicalStep has begun another update, or is gone.
  StepReport read() const;

 private:
  friend class LogicalStep;
  struct Source {
    const Optimizer* optimizer;  // null: the LogicalStep is gone
    std::int64_t updates;
  };
  std::shared_ptr<const Source> source_;
  std::int64_t update_ = 0;
};

/// The forward of samples [first, first + count) of the logical batch. Called under a current
/// tape; may be called again for the same samples, and must then compute the same.
using MicroLoss = std::function<Loss(std::int64_t first, std::int64_t count)>;

/// Samples in a row that can be cut: data::Batch is one.
template <class B>
concept Sliceable = requires(const B batch) {
  batch.size();
  batch.slice(std::int64_t{}, std::int64_t{});
};

/// A training step as a function of its logical batch:
///
///   optim::LogicalStep step(optimizer, parameters, {.micro = 8});
///   const optim::BatchReport report = step.run(batch, [&](const data::Batch& micro) {
///     return model.loss(micro.tokens, micro.targets);
///   });
///
/// When memory runs out (OutOfMemory, whoever throws it) nothing of the failed work remains and it
/// is done again. Numerics::kDefault: a failed forward repeats its micro-batch, a failed backward
/// has left part of a gradient behind and repeats the window. Numerics::kExact: a micro-batch runs
/// as its grains one after another, and the failed grain is repeated. The first failure at a sample
/// is answered by the same size, so that what passes by itself changes no bit; the next ones at
/// that sample by smaller and smaller micro-batches: by what the budget says would fit, else by a
/// quarter. A single sample (grain) that fails twice is given up: OutOfMemory, with what was tried.
/// A smaller micro-batch stays for the steps to come and grows back by a third after `grow_after`
/// good steps; when it had to shrink again, only after twice as many. Recovery makes the host wait
/// for the device; a step that does not fail never does (exact numerics: once).
///
/// An exception that leaves run() before the update leaves parameters and optimizer as they were
/// and the window empty; run() may be called again.
///
/// With several ranks (those of the set's Sharding) the logical batch is what they have together:
/// run() gets this rank's samples, which may be none, and the step is that of one rank with all of
/// them; the loss that read() tells is that of all. Gradients are summed over the ranks once per
/// window, beside the last backward (BucketSums), with ReducePolicy::kReduceEach in each
/// micro-batch. All ranks leave run() together: those that did not fail throw too. When memory runs
/// out after gradients have left for other ranks, all repeat the window. All use the smallest
/// micro-batch that any of them needs, from the next step on. What fails after all have agreed to
/// update is an error on all ranks as well; their weights may then differ, and later calls of run()
/// are refused.
class LogicalStep {
 public:
  /// Begins a window of its own on the set: one LogicalStep (or Window) at a time.
  LogicalStep(Optimizer& optimizer, ParameterSet& parameters, const StepOptions& options = {});
  ~LogicalStep() { source_->optimizer = nullptr; }
  LogicalStep(const LogicalStep&) = delete;
  LogicalStep& operator=(const LogicalStep&) = delete;

  BatchReport run(std::int64_t samples, const MicroLoss& loss);
  /// The same: `loss_of` gets slices of the batch.
  template <Sliceable Batch, class LossOf>
  BatchReport run(const Batch& batch, LossOf&& loss_of) {
    return run(
        static_cast<std::int64_t>(batch.size()),
        [&](std::int64_t first, std::int64_t count) { return loss_of(batch.slice(first, count)); });
  }

  /// Samples per micro-batch in the next step; 0: the whole batch. Below options().micro after
  /// memory ran out.
  std::int64_t micro() const;
  const StepOptions& options() const { return options_; }
  Window& window() { return *window_; }
  const Window& window() const { return *window_; }
  Optimizer& optimizer() const { return optimizer_; }

 private:
  friend struct BatchReport;
  struct Run;
  std::int64_t unit() const;
  void accumulate(Run& run);
  void add(Run& run, std::int64_t count);
  void after_failure(Run& run, std::int64_t count, const OutOfMemory& error);
  std::int64_t smaller(const Run& run, std::int64_t count, const OutOfMemory& error) const;
  template <class Pass>
  void add_up(Run& run, Pass&& pass);
  bool close(Run& run);
  bool close_with_ranks(Run& run);
  std::int64_t agree(const std::exception_ptr& error, Run* run);
  void update(Run& run);
  void find_not_finite(Run& run);
  void choose_next(const Run& run);
  void reclaim();
  [[noreturn]] void give_up(const Run& run, const OutOfMemory& error) const;

  Optimizer& optimizer_;
  ParameterSet& parameters_;
  Communicator* ranks_;  // null: one
  StepOptions options_;
  std::optional<Window> window_;
  std::int64_t wanted_, size_;  // samples; at most kWhole
  std::int64_t proven_ = 0;     // the size of the last step
  int good_ = 0, patience_;
  std::shared_ptr<BatchReport::Source> source_;
  bool torn_ = false;  // an update failed on some rank
};
}  // namespace accrue::optim

#pragma once
// One call for a logical step: cut into micro-batches, accumulate, clip, update; and again when
// memory runs out.
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <vector>
#include <accrue/core/allocator.h>
#include <accrue/core/peers.h>
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
  /// Null: there is one rank, or those of the set's Sharding.
  Peers* peers = nullptr;
  /// With several ranks that do not divide the set: adds gradients, touched bits and totals up over
  /// them. Called once per window on every rank, when all have accumulated their share; what it
  /// needs must have been allocated before.
  std::function<void(Window&)> reduce{};
};

/// What run() did. All but read() is known without waiting for the device.
struct BatchReport {
  std::vector<std::int64_t> micro_batches;  // their sizes, in order, as they were summed
  int retries = 0;                          // times that memory ran out and work was done again
  int restarts = 0;                         // of these, how often the whole window was
  int redone = 0;         // exact numerics: times the window was added again, exponents rose
  std::int64_t peak = 0;  // highest live bytes on the parameters' device, failed attempts included
  CategoryBytes at_peak{};  // what each category held then
  /// Of the host's time, failed attempts included. On CUDA the host only enqueues.
  double forward_seconds = 0, backward_seconds = 0, optimizer_seconds = 0;

  /// Loss, weight, norm, learning rate and counters of this step. Waits for the device. An error
  /// once the LogicalStep has begun another update.
  StepReport read() const;

 private:
  friend class LogicalStep;
  const LogicalStep* owner_ = nullptr;
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
/// and the window empty; run() may be called again. With several ranks all leave together: those
/// that did not fail throw too. All ranks use the smallest size that any of them needs, from the
/// next step on. Where the ranks divide the set (Sharding) a rank may have no samples; with
/// ReducePolicy::kReduceEach all ranks repeat the window when memory runs out on one of them.
/// Without sharding, exact numerics over several ranks and ranks without samples are errors.
class LogicalStep {
 public:
  /// Begins a window of its own on the set: one LogicalStep (or Window) at a time.
  LogicalStep(Optimizer& optimizer, ParameterSet& parameters, const StepOptions& options = {});

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
  void choose_next(const Run& run);
  void reclaim();
  [[noreturn]] void give_up(const Run& run, const OutOfMemory& error) const;

  Optimizer& optimizer_;
  ParameterSet& parameters_;
  StepOptions options_;
  std::optional<Window> window_;
  std::int64_t wanted_, size_;  // samples; at most kWhole
  std::int64_t proven_ = 0;     // the size of the last step
  int good_ = 0, patience_;
  std::int64_t updates_ = 0;
};
}  // namespace accrue::optim

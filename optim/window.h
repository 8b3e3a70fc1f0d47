#pragma once
// The accumulation window: the run of micro-batches between two optimizer steps.
#include <accrue/core/loss.h>
#include <accrue/core/parameter.h>
#include <accrue/core/tape.h>

namespace accrue::optim {

/// Sums gradients, losses and weights of any number of micro-batches, of any sizes. Nothing is
/// divided before the optimizer step, so the step depends on the samples only and not on how they
/// were cut:
///
///   optim::Window window(parameters);
///   for (const Batch& micro : split(batch, 4)) {
///     Tape tape;
///     const Tape::Scope on(tape);
///     window.add(tape, model.loss(micro.tokens, micro.targets));
///   }
///   optimizer.step(window);
///
/// Adding costs no memory and no pass beyond the backward itself: gradients accumulate in place, in
/// float32, the first touch overwriting what the last window left.
class Window {
 public:
  /// One window at a time per set: beginning one drops what an unfinished one had accumulated.
  explicit Window(ParameterSet& parameters);

  /// Runs backward from the loss sum and adds its sum and weight. Throws before anything is changed
  /// when the loss is not on the tape, not of floating dtype or on another device. When backward
  /// itself throws (out of memory), the window holds part of the micro-batch's gradient: reset() it
  /// and begin again.
  void add(Tape& tape, const Loss& loss);

  /// Forgets everything accumulated. optimizer.step() does so at its end, also when it skips the
  /// update.
  void reset();

  int micro_batches() const { return micro_batches_; }
  bool empty() const { return micro_batches_ == 0; }
  ParameterSet& parameters() const { return parameters_; }
  /// Sum of the losses, and of the weights: float64 (2), on the device. Undefined content while
  /// empty().
  const Tensor& totals() const { return totals_; }
  /// The mean loss of what was added so far. Waits for the device.
  double loss() const;
  double weight() const;

 private:
  ParameterSet& parameters_;
  Tensor totals_;
  int micro_batches_ = 0;
};
}  // namespace accrue::optim

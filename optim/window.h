#pragma once
// The accumulation window: the run of micro-batches between two optimizer steps.
#include <memory>
#include <string>
#include <vector>
#include <accrue/core/loss.h>
#include <accrue/core/parameter.h>
#include <accrue/core/tape.h>

namespace accrue::optim {
class BucketSums;
class ExactSums;
class ShardSums;

/// How a window sums.
enum class Numerics {
  kDefault,  // in place, in float32: two splits of a batch agree to the last few bits
  kExact,    // in integers: the bits of a step depend on the logical batch alone
};

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
///
/// Exact mode (docs/numerics.md): every add() is one GRAIN, a number of samples that is part of the
/// recipe (1, usually), in its own width, with its own tape. Kernels then see shapes that do not
/// depend on the micro-batch, and the grains' gradients are added as integers, so that the order
/// of the grains, their micro-batches, threads, recomputed blocks and retries leave no trace in
/// the bits. Where logits or MLPs are cut into tiles, ActivationPolicy::fixed_rows makes their size
/// part of the recipe as well; without it tiles change the last bits. Costs 8 bytes per parameter,
/// one pass over the gradients per grain, and one wait for the device per step. Keep the window for
/// the whole run: it learns the exponents.
class Window {
 public:
  /// One window at a time per set: beginning one drops what an unfinished one had accumulated.
  /// kExact refuses float64 parameters.
  explicit Window(ParameterSet& parameters, Numerics numerics = Numerics::kDefault);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  Numerics numerics() const { return exact_ ? Numerics::kExact : Numerics::kDefault; }

  /// Runs backward from the loss sum and adds its sum and weight. Throws before anything is changed
  /// when the loss is not on the tape, not of floating dtype or on another device. When backward
  /// itself throws (out of memory), the window holds part of the micro-batch's gradient: reset() it
  /// and begin again. In exact mode it holds nothing of it: add the grain again. `last`: it is this
  /// rank's last one of the window, so that gradients may leave for the other ranks while backward
  /// goes on. Forgetting it costs time alone.
  void add(Tape& tape, const Loss& loss, bool last = false);

  /// A micro-batch of other ranks, in which this one has no part: for sets of several ranks
  /// (Sharding), when they have different numbers of samples. With ReducePolicy::kReduceEach and
  /// ShardStage::kParameters add() and add_nothing() are collectives, and every rank must call as
  /// many of them.
  void add_nothing();

  /// With several ranks: sends what gradients have not left yet. A rank whose backward failed owes
  /// the others this much. settle() does it otherwise.
  void send();
  /// Some have left since reset().
  bool sent() const;

  /// Ends the sums. kDefault: true, and nothing to do. With several ranks: a collective with one
  /// outcome on all, after which the gradients (of this rank's part, where ranks divide the set),
  /// the touched flags and totals() are sums over all ranks; nothing can be added until reset().
  /// kExact: waits for the device. False: some gradient did not fit the exponents (ExactSums says
  /// when). They have been adapted and the window is reset: add the same grains again. True: the
  /// gradient block, the touched flags and totals() hold the sums, as in default mode. A gradient
  /// that is not finite becomes NaN there, so that the step is skipped. Settled already, or nothing
  /// added: true.
  bool settle();

  /// Forgets everything accumulated. optimizer.step() does so at its end, also when it skips the
  /// update.
  void reset();

  /// With ReducePolicy::kReduceEach and ShardStage::kParameters: calls of add() and add_nothing()
  /// since reset() that were collectives, whether they threw or not. A rank whose share failed owes
  /// the others the rest.
  std::int64_t passes() const { return passes_; }

  /// Where gradients of this rank were not finite before they were summed over the ranks: names of
  /// parameters in exact mode, else of buckets, after watch_finite(). Empty with one rank and with
  /// ReducePolicy::kReduceEach. After settle(); waits for the device.
  std::vector<std::string> not_finite() const;
  void watch_finite();

  int micro_batches() const { return micro_batches_; }
  bool empty() const { return micro_batches_ == 0; }
  ParameterSet& parameters() const { return parameters_; }
  /// Sum of the losses, and of the weights: float64 (2), on the device. Undefined content while
  /// empty(), in exact mode until settle().
  const Tensor& totals() const { return totals_; }
  /// The mean loss of what was added so far. Waits for the device.
  double loss() const;
  double weight() const;

  /// The state of exact mode, for checkpoints and hashes: int64, an exponent per parameter, those
  /// of loss and weight, and the bits that count grains. A run that goes on with the bits of an
  /// uninterrupted one restores it. Undefined in default mode.
  Tensor exponents() const;
  /// Only while empty(), and in exact mode.
  void restore_exponents(const Tensor& exponents);

 private:
  double total(int which) const;
  void reduce_each();
  template <class F>
  void pass(F&& backward);
  ParameterSet& parameters_;
  Tensor totals_;
  // Between the ranks: at the end of the window, or in each micro-batch.
  std::unique_ptr<BucketSums> buckets_;
  std::unique_ptr<ShardSums> each_;
  std::unique_ptr<ExactSums> exact_;
  int micro_batches_ = 0;
  std::int64_t passes_ = 0;
  bool settled_ = false;
};
}  // namespace accrue::optim

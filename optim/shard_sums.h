#pragma once
// Gradients that ranks divide: summed over the ranks in every micro-batch, as backward goes.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>
#include <accrue/core/communicator.h>
#include <accrue/core/gradient_home.h>
#include <accrue/core/parameter.h>
#include <accrue/core/tape.h>

namespace accrue::optim {

/// One micro-batch after another of ReducePolicy::kReduceEach. A parameter's gradient has memory
/// from its first touch on until the windows it lies in have been sent. Windows are sent from the
/// last to the first, as soon as all their parameters are ready, beside the rest of backward:
/// copied into a buffer, with what the rank's shard holds so far added to the rank's own part, so
/// that the reduce-scatter leaves the new sum in the shard. At most two buffers exist. Every rank
/// calls add() or skip() as many times; both are collectives.
class ShardSums final : GradientHome {
 public:
  /// A run of one parameter's gradient, and where in a buffer it is to be added.
  struct Piece {
    View sum;
    ConstView gradient;
    int number = 0;  // of the parameter
  };
  using Add = std::function<void(std::span<const Piece>)>;

  /// shard: (layout().shard()), the sums; `add` adds gradients into a buffer of its dtype.
  ShardSums(ParameterSet& parameters, Tensor shard, Add add);

  /// A new window: the next micro-batch overwrites the shard.
  void begin();
  /// Backward of one micro-batch. When it throws, nothing of what was not sent remains, the other
  /// ranks got zeros for it, and the window's sums are worthless.
  void add(Tape& tape, const Tensor& loss);
  /// A micro-batch of other ranks, in which this one has no part.
  void skip();
  /// By parameter: some micro-batch of this rank touched it.
  const std::vector<char>& used() const { return used_; }

 private:
  void provide(GradSlot& slot) override;
  void start();
  void ready(int number);
  void send_ready();
  void send(int window);
  void finish();
  int first_window(const Parameter& p) const;
  int last_window(const Parameter& p) const;

  ParameterSet& parameters_;
  Tensor shard_;
  Add add_;
  bool first_ = true;
  std::vector<char> used_;
  // Of one backward.
  std::vector<Tensor> gradients_;  // by parameter; undefined while untouched
  std::vector<char> waited_;       // by parameter: not ready yet
  std::vector<int> pending_;       // by window: parameters that are not
  int next_ = -1;                  // the window that is sent next
  std::vector<CollectiveWorkPtr> sent_;
  std::vector<Piece> pieces_;
};
}  // namespace accrue::optim

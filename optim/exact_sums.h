#pragma once
// The sums of a window in exact mode: integers, so that the order of the grains leaves no trace.
#include <cstdint>
#include <span>
#include <vector>
#include <accrue/core/loss.h>
#include <accrue/core/parameter.h>
#include <accrue/kernels/exact_accumulate/exact_accumulate.h>
#include <accrue/optim/bucket_sums.h>
#include <accrue/optim/shard_sums.h>

namespace accrue::optim {

/// The parameters' gradients, the losses and the weights of a window in fixed point
/// (kernels/exact_accumulate): 8 bytes per element of the gradient block. Each parameter, the loss
/// and the weight has its exponent e, and c says how many grains there may be; m is its largest
/// leaf so far. A window can be settled when, for all that have a leaf other than 0,
///   ilogb(m) < e <= ilogb(m) + 38 - c   and   grains <= 2^c:
/// nothing overflows, and the unit 2^(e + c - 62) is at most m / 2^24. Either way the next window
/// gets e = ilogb(m) + 7, 6 bits above what was seen, and c = max(c, bits of the count): functions
/// of the data alone, of all ranks' together: they sum in settle(), or hold their shards' sums only
/// (ReducePolicy::kReduceEach). The first window begins with e =
/// 12, for loss and weight 20 (whose unit is then 2^-30), and c = 12. After a leaf that is not
/// finite the exponents stay.
class ExactSums {
 public:
  /// `buckets`: what sums over the ranks; null where there is one, or where ShardSums does it.
  explicit ExactSums(ParameterSet& parameters, BucketSums* buckets = nullptr);

  /// Forgets the sums; the exponents stay.
  void begin();
  /// Adds one grain: the loss, its weight and the gradients of the touched parameters.
  void add(const Loss& loss);
  // The same in two halves, for gradients that have left when backward ends.
  void begin_grain();
  void add_gradients(std::span<const ShardSums::Piece> pieces);
  void end_grain(const Loss& loss, const std::vector<char>& used);
  /// There is no grain of this rank.
  void add_nothing();
  /// Of a set with ReducePolicy::kReduceEach: this rank's shard of the sums.
  Tensor shard() const { return sums_.window(0, {block_}); }
  /// False: the exponents did not fit, and have been changed. True: the sums are in the gradient
  /// block, the parameters are marked touched, and totals (float64 (2)) are written. Waits for the
  /// device. Over ranks: a collective with one outcome; where they divide the set the gradient
  /// block holds the sums of this rank's part.
  bool settle(const Tensor& totals);
  /// The sum of the losses (0) or weights (1) so far. Waits for the device.
  double total(int which) const;

  /// By parameter: a leaf of this rank was not finite. After settle().
  const std::vector<char>& not_finite() const { return not_finite_; }

  const Tensor& exponents() const { return exponents_; }
  void restore(const Tensor& exponents);

 private:
  int tensors() const { return static_cast<int>(used_.size()) + 2; }
  void add_total(const Loss& loss);
  void agree(std::vector<std::int64_t>& observed);
  void reduce();
  void list_results();
  bool fits(const std::vector<std::int64_t>& observed) const;
  void raise(const std::vector<std::int64_t>& observed);
  void keep_exponents();

  ParameterSet& parameters_;
  BucketSums* buckets_;
  std::int64_t block_;  // sums of gradients; behind them those of loss and weight
  Tensor sums_, observed_, exponents_;
  std::vector<std::int64_t> exponents_now_;  // what exponents_ holds
  std::vector<char> used_;                   // by parameter: some grain touched it
  std::vector<char> not_finite_;
  std::int64_t grains_ = 0;  // of this rank; from settle() on, of all
  std::vector<ExactItem> items_;
  std::vector<ExactResult> results_;
};
}  // namespace accrue::optim

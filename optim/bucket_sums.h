#pragma once
// Gradients that every rank accumulates in full, and which are summed over the ranks at the end.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include <accrue/core/communicator.h>
#include <accrue/core/parameter.h>
#include <accrue/core/tape.h>

namespace accrue::optim {

/// The gradient block in buckets, which are windows of it: nothing is copied. From the last
/// parameter to the first, as backward makes them complete; the first bucket is small, so that
/// something is on its way early (Sharding::first_window, Sharding::window elements; a parameter is
/// never cut, and a module's own parameters only where they are more than a bucket: weight and bias
/// of a layer are complete together). Where ranks divide the set the buckets are the windows of its
/// layout. All ranks send all buckets, in this order and once per pass, whatever their
/// micro-batches were:
///   - while micro-batches accumulate nothing is sent;
///   - in the last one, whose backward last_backward() runs, a bucket is sent as soon as it and all
///     before it are complete, beside the rest of backward;
///   - send_rest() sends what is left: of parameters that the last micro-batch did not use, of a
///     rank without samples, of a rank whose backward failed.
/// A parameter that this rank did not touch counts as zeros there.
class BucketSums {
 public:
  explicit BucketSums(ParameterSet& parameters);
  ~BucketSums();
  BucketSums(const BucketSums&) = delete;
  BucketSums& operator=(const BucketSums&) = delete;

  struct Bucket {
    std::int64_t first = 0, count = 0;  // in the gradient block
    std::string name{};                 // "gradients 2 (h.3.mlp.down.weight ... h.2.norm.weight)"
  };
  const std::vector<Bucket>& buckets() const { return buckets_; }

  /// A new pass. What is on its way is waited for.
  void begin();
  void last_backward(Tape& tape, const Tensor& loss);
  /// The rest, and the totals of loss and weight; once per pass.
  void send_rest(const Tensor& totals);
  /// Something has been sent since begin(): the other ranks have got it.
  bool sent() const { return next_ > 0; }
  /// Everything has.
  bool all_sent() const { return rest_; }
  /// The stream waits for the sums, and the touched flags become those of any rank.
  void finish();
  /// The same buckets of another block that is laid out like the gradients, at once.
  void sum(const Tensor& block, std::string_view what);

  /// From now on not_finite() knows which buckets had a gradient of this rank that was not finite,
  /// before it was summed. Costs one pass over the gradients, and memory of its own. not_finite()
  /// waits for the device.
  void watch_finite();
  std::vector<int> not_finite() const;

 private:
  void add_bucket(std::int64_t first, std::int64_t end);
  template <class F>
  void for_each_bucket(const Parameter& p, F&& f);
  void ready(int parameter);
  void send(std::size_t bucket);
  void square(std::size_t bucket);
  CollectiveWorkPtr start(const Tensor& block, std::size_t bucket, std::string_view name);

  ParameterSet& parameters_;
  Communicator& ranks_;
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;      // the bucket that is sent next
  bool rest_ = false;         // all are sent
  std::vector<char> waited_;  // by parameter: its gradient is not complete yet
  std::vector<int> pending_;  // by bucket: parameters that are not
  std::vector<CollectiveWorkPtr> sent_;
  Tensor squares_{};                         // of watch_finite()
  std::vector<std::int64_t> squares_end_{};  // by bucket
};
}  // namespace accrue::optim

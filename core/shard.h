#pragma once
// How ranks divide the flat blocks of a parameter set among them (ZeRO; Rajbhandari et al. 2020,
// "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models").
#include <cstdint>
#include <vector>
#include <accrue/core/types.h>

namespace accrue {
class Communicator;

/// What exists once over all ranks instead of once on each: nothing; moments and master weights;
/// gradients too; the parameters' values too, which are gathered while they are read
/// (GatheredValues).
enum class ShardStage : std::uint8_t { kNone, kOptimizer, kGradients, kParameters };

/// When the gradients of the ranks become one. kKeepFull: after the last micro-batch; each rank
/// holds all of its gradients until then. kReduceEach: in every micro-batch, as backward goes; a
/// rank then holds the sum of its part alone. Only for stage kGradients.
enum class ReducePolicy : std::uint8_t { kKeepFull, kReduceEach };

struct Sharding {
  /// Those that train the set together: each has its share of the samples, and gradients are summed
  /// over them. Null, or of one rank: there are no others.
  Communicator* ranks = nullptr;
  ShardStage stage = ShardStage::kNone;
  ReducePolicy policy = ReducePolicy::kKeepFull;
  /// Elements of a window, which is what one collective moves; rounded up to what can be divided.
  /// Where values are divided, each rank has room for a few whole windows of them: more than the
  /// largest parameter has need not be. 0: 2^23 on CUDA; on the cpu 2^20, which stay in its cache
  /// and leave earlier (docs/distributed.md, Measuring).
  std::int64_t window = 0;
  /// Of the first collective, where nothing is divided.
  std::int64_t first_window = std::int64_t{1} << 18;
};

/// The flat blocks as windows of one size (the last may be smaller), each divided into as many
/// equal parts as there are ranks; rank r has part r of every window, one after another, in its
/// shard. Parts are whole chunks, whose borders do not depend on the number of ranks: so does not
/// what is summed by chunks. The last window reaches beyond the set; a rank may have padding only.
class ShardLayout {
 public:
  static constexpr std::int64_t kChunk = 4096;  // elements

  /// One rank, which has everything.
  explicit ShardLayout(std::int64_t elements = 0);
  ShardLayout(std::int64_t elements, int ranks, std::int64_t window);

  int ranks() const { return ranks_; }
  std::int64_t elements() const { return elements_; }  // of the set
  std::int64_t padded() const { return padded_; }      // the windows together
  std::int64_t shard() const { return padded_ / ranks_; }
  int windows() const { return windows_; }

  struct Range {
    std::int64_t first = 0, count = 0;
    std::int64_t end() const { return first + count; }
  };
  Range window(int number) const;
  /// In the flat blocks; padding included.
  Range part(int number, int rank) const;
  /// Where a rank's part of the window lies in its shard.
  Range in_shard(int number) const;

  /// A run of the set's elements [first, first + count), and where it lies in a shard.
  struct Piece {
    std::int64_t first = 0, at = 0, count = 0;
  };
  /// What a shard holds, without padding, in order. Over all ranks: every element once.
  std::vector<Piece> pieces(int rank) const;
  std::uint64_t hash() const;

 private:
  std::int64_t elements_, padded_, window_;
  int ranks_ = 1, windows_ = 1;
};
}  // namespace accrue

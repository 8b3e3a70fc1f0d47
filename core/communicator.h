#pragma once
// What ranks do together. Here is the contract; the communicators that keep it are in dist.
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <accrue/core/peers.h>
#include <accrue/core/tensor.h>

namespace accrue {

/// How the values of the ranks become one. There is no average: sums are divided once, at the end,
/// by the weight of the whole logical batch.
enum class ReduceOp : std::uint8_t { kSum, kMax, kMin, kBitOr };
std::string_view name_of(ReduceOp op);  // "sum", "max", "min", "bit_or"

/// A collective on its way. It keeps the tensors alive until it has ended, and has let go of them
/// when wait() returns (on cuda wait_on(the stream that was current at its call)).
class CollectiveWork {
 public:
  virtual ~CollectiveWork() = default;
  /// Whether it has ended. Never blocks; throws what made it fail.
  virtual bool done() = 0;
  /// The host waits until it has ended, or throws what made it fail.
  virtual void wait() = 0;
  /// What is enqueued on `stream` from now on comes after it. On cuda the host goes on; on cpu,
  /// where a stream is the thread itself, this is wait().
  virtual void wait_on(Stream stream) = 0;
};
using CollectiveWorkPtr = std::shared_ptr<CollectiveWork>;

/// What was asked of a communicator so far.
struct CommunicatorStats {
  std::int64_t collectives = 0;  // on tensors, those of one rank or of no elements not counted
  std::int64_t bytes = 0;        // of this rank's inputs
};

/// A group of ranks. Every collective must be called by all of them, in the same order, with equal
/// op, dtype, sizes and name; a communicator that can find out otherwise fails on all ranks and
/// says what each rank called. Called from one thread.
///
/// Collectives start after what the current stream of the tensors' device holds so far, run beside
/// what comes later, and end in the order of their calls. Until one has ended nobody may touch its
/// tensors. Tensors of 0 elements are legal and cost nothing. `name` says what it is in every
/// error, trace and report ("gradients 2 of step 17").
class Communicator : public Peers {
 public:
  /// inout becomes op over the ranks' inouts, the same bits on every rank.
  virtual CollectiveWorkPtr all_reduce(const Tensor& inout, ReduceOp op, std::string_view name) = 0;
  /// in: size() parts of out's size. out becomes op over all ranks' parts rank(). out may be that
  /// part of in. Floating sums are taken in the order of the ranks, or as the library behind it
  /// does it where its documentation says so.
  virtual CollectiveWorkPtr reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op,
                                           std::string_view name) = 0;
  /// out: size() parts of in's size; part r becomes rank r's in. in may be part rank() of out.
  virtual CollectiveWorkPtr all_gather(const Tensor& in, const Tensor& out,
                                       std::string_view name) = 0;
  /// in and out: size() parts each. Part r of out becomes part rank() of rank r's in. Two blocks.
  virtual CollectiveWorkPtr all_to_all(const Tensor& in, const Tensor& out,
                                       std::string_view name) = 0;
  /// inout becomes that of rank `root`.
  virtual CollectiveWorkPtr broadcast(const Tensor& inout, int root, std::string_view name) = 0;
  /// The ranks with the same color as a group of their own, ordered by key, then by rank.
  /// Collective.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  virtual CommunicatorStats stats() const = 0;
};
}  // namespace accrue

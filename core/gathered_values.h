#pragma once
// The values of parameters that ranks divide (ShardStage::kParameters): there while they are read.
#include <cstdint>
#include <list>
#include <string_view>
#include <vector>
#include <accrue/core/communicator.h>
#include <accrue/core/shard.h>
#include <accrue/core/tensor.h>

namespace accrue {

/// Every rank keeps its shard of the values alone. Parameter::value, and what reshape(), detach()
/// and window() make of it, says which elements of the set it is and has no memory. When an op
/// reads it (its conversion to ConstView, in forward, in backward, in what is recomputed, with or
/// without a tape), the windows of the layout that it lies in are gathered, unless they are still
/// there from an earlier reading. What is there is forgotten when there must be room for others,
/// the least recently read first, but never before the end of the kernel call that reads it. To
/// write it is an error.
///
/// Memory: room for as many windows as the parameter lies in that lies in most, and two; all of
/// them where there are fewer. Allocated once; more only while one kernel call reads more than
/// that.
///
/// The windows that come next are gathered ahead, beside the computing: those that came next in the
/// pass before.
///
/// Ranks need not read the same, nor equally often (they have other samples, and other numbers of
/// them): before each collective all say what they need next, and one thing that one of them needs
/// is done by all (Peers::max of two numbers). So a rank that reads a parameter waits until every
/// rank reads one, or is in meet() or await_reduction(). Who runs collectives of their own first
/// calls meet(). Errors of the communicator come out of the op. Used from one thread.
class GatheredValues {
 public:
  /// shard: this rank's (layout.shard()). most: windows that the parameter which lies in most does.
  GatheredValues(const ShardLayout& layout, Communicator& ranks, Tensor shard, int most);
  ~GatheredValues();
  GatheredValues(const GatheredValues&) = delete;
  GatheredValues& operator=(const GatheredValues&) = delete;

  /// The tensor of elements from `first` on.
  Tensor stand_in(std::int64_t first, const Shape& shape);

  /// The end of a pass (a micro-batch, an evaluation, a sample that rank 0 generates): until all
  /// ranks have called it, this one helps to gather what the others read. A collective.
  void meet();
  /// Until all ranks are about to start the same collective on gradients, as meet().
  void await_reduction();
  /// Before the shard is written: what was gathered is worthless.
  void forget();

  /// Windows of room(), and what happened so far, in windows.
  int room() const { return room_; }
  struct Counts {
    std::int64_t gathered = 0, ahead = 0;  // for this rank; of these before they were needed
    std::int64_t for_others = 0;           // that this rank did not need
    std::int64_t copied = 0;               // those that two readings share, beside each other
  };
  const Counts& counts() const { return counts_; }

 private:
  friend class Tensor;
  // Windows [first, first + count).
  struct Span {
    int first = 0, count = 0;
    int end() const { return first + count; }
    bool has(const Span& s) const { return first <= s.first && s.end() <= end(); }
    bool operator==(const Span&) const = default;
  };
  struct Run {
    Span span{};
    int place = -1;  // in the room; -1: memory of its own
    Tensor values{};
    std::vector<CollectiveWorkPtr> works{};
    bool complete = false;
    std::uint64_t used = 0;                 // larger: later
    std::uint64_t use = ~std::uint64_t{0};  // detail::uses_ended() when it was read
  };

  ConstView read(const View& which);
  Run& provide(const Span& s);
  Run* find(const Span& s);
  Run* start(const Span& s, std::uint64_t before);
  int make_room(int count, std::uint64_t before);
  void arrive(Run& run);
  void look_ahead(const Span& now);
  void end_pass();
  bool may_go(const Run& run, std::uint64_t before) const;

  std::int64_t agree(std::int64_t mine);
  CollectiveWorkPtr gather(int window, const Tensor& into);
  CollectiveWorkPtr launch(int window, const Tensor& into);
  void help(int window, const Tensor& spare);

  ShardLayout layout_;
  Communicator& ranks_;
  Tensor shard_, memory_;
  std::int64_t window_;
  int room_;
  std::list<Run> runs_{};
  std::uint64_t clock_ = 0;
  Span last_{};                          // that was read
  std::vector<Span> pass_{}, before_{};  // what was read, in this pass and the one before
  std::size_t next_ = 0;                 // where this pass is in the one before
  Counts counts_{};
};
}  // namespace accrue

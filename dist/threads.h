#pragma once
// Ranks that are threads of one process: for tests, and for programs whose parts talk as ranks do.
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>
#include <accrue/core/communicator.h>

namespace accrue::dist {

struct ThreadOptions {
  /// A rank that waits longer for another one fails, and with it all ranks.
  std::chrono::milliseconds deadline{10'000};
  /// Not 0: ranks come late, and collectives are done late, some only when somebody waits for them:
  /// a different disorder for each number. What a rank may not touch before a collective has ended
  /// then shows.
  std::uint64_t disorder = 0;
};

/// `size` threads, the caller's among them, each with a Communicator:
///
///   dist::ThreadWorld(4).run([](Communicator& c) {
///     const Tensor t = Tensor::scalar(c.rank(), DType::kF32);
///     c.all_reduce(t, ReduceOp::kSum, "ranks")->wait();
///   });
///
/// The collectives are those of core/communicator.h, for every dtype, on cpu and cuda; on meta they
/// are checked and compared, and move nothing. Values go through the host. Whoever comes last to a
/// collective does it, for all; a rank that goes on meanwhile computes beside it. Sums are taken in
/// the order of the ranks and rounded once, so bits do not depend on who came when. On cuda too
/// wait_on() lets the host wait.
///
/// Errors (DistributedError), on all ranks and with what each rank called: calls that do not go
/// together, a rank that ended or threw while others need it, a rank that does not come within the
/// deadline. A communicator that has failed stays so.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size, const ThreadOptions& options = {});
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;
  int size() const { return size_; }

  /// Runs `body` once per rank, on the caller's default device, and waits for all. Throws what the
  /// first rank to fail threw. Meanwhile num_threads() is what each rank's share of it is. May be
  /// called again: every run has communicators of its own, which
  /// body must not keep.
  void run(const std::function<void(Communicator&)>& body) const;
  /// The same; what each rank threw, or null.
  std::vector<std::exception_ptr> try_run(const std::function<void(Communicator&)>& body) const;

 private:
  std::vector<std::exception_ptr> run(const std::function<void(Communicator&)>& body,
                                      std::exception_ptr& first) const;
  int size_;
  ThreadOptions options_;
};
}  // namespace accrue::dist

#pragma once
// Processes that an MPI launcher started, as ranks. Needs a build with MPI (ACCRUE_HAS_MPI).
#include <memory>
#include <string>
#include <accrue/core/communicator.h>
#include <accrue/dist/failure.h>

namespace accrue::dist {

struct MpiOptions {
  Seconds init_deadline{300};        // for all ranks to have come
  Seconds collective_deadline{600};  // for each collective, from piece to piece of large ones
  /// Every collective is compared over the ranks before its data is touched. Without it, ranks that
  /// call different things get wrong data or hang.
  bool compare = true;
  /// Floating sums in the order of the ranks for all sizes and dtypes, as bfloat16 has it anyway.
  bool ordered_sums = false;
  FailureHandler on_failure = exit_on_failure;
  std::string dump_folder = {};  // the text of a failure also goes to <folder>/rank-N.txt
  /// Of what is sent at once. The C library gives memory of 32 MiB and more back to the system at
  /// every free; MPI's buffers of that size are then slow.
  std::int64_t piece_bytes = std::int64_t{16} << 20;
  /// Of memory outside of the allocators, twice for each communicator.
  std::int64_t scratch_bytes = std::int64_t{4} << 20;
};

/// MPI in this process. One thread of its own does everything that MPI does, from MPI_Init_thread
/// (FUNNELED is enough) to MPI_Finalize, and polls with short sleeps, so that computation has the
/// processor. A second thread watches the deadlines.
///
/// Its communicators take tensors of the cpu (those of meta are counted, nothing else). Of one
/// communicator two collectives exchange data at a time, and calls are compared ahead of that;
/// those of several run side by side. all_reduce of float32 and float64 sums in the order of
/// MPI_Iallreduce: the same bits on every rank and in every run, but not those of another MPI or
/// number of ranks (see ordered_sums); bfloat16 is summed in float32 in the order of the ranks and
/// rounded once. max and min of floating numbers keep NaN.
///
/// A rank that is lost or late (a deadline), ranks that call different collectives, and any error
/// of MPI are failures (failure.h): exit codes 75 and 76. MPI_Abort is never called: it can hang.
class MpiSession {
 public:
  /// Collective. Once in a process: MPI cannot be started again. Throws kUnsupported when MPI is
  /// already initialised.
  explicit MpiSession(const MpiOptions& options = {});
  /// finish(), unless an exception passes: then it leaves the others alone.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// All ranks. Belongs to the session, as those that split() makes from it do.
  Communicator& world();
  int local_rank() const;  // among the ranks that share this machine's memory
  int local_size() const;
  std::string library() const;  // "Open MPI v4.1.4, ..."

  /// Nobody calls anything any more. Collective.
  void finish();
  /// Ends this rank, and with it the launcher's job: the failure handler is called.
  void fail(ExitCode code, const std::string& why);
  /// What this rank does now, for a report: "since 3.2 s in #14 all_reduce ...".
  std::string now() const;
  class Watchdog& watchdog();

 private:
  std::shared_ptr<class MpiEngine> engine_;
  std::unique_ptr<Communicator> world_;
  int exceptions_;
  bool finished_ = false;
};
}  // namespace accrue::dist

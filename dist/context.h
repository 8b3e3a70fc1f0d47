#pragma once
// One process among the ranks of a job: how a program starts, agrees, is told to stop, and ends.
#include <memory>
#include <string>
#include <accrue/core/communicator.h>
#include <accrue/dist/environment.h>
#include <accrue/dist/failure.h>

namespace accrue::dist {

enum class BackendKind : std::uint8_t {
  kAuto,  // kSelf for one process, else kMpi; kNccl beside it where communicator() is asked for a
          // GPU
  kSelf,
  kMpi,
  kNccl,  // a GPU for each rank from the start, and what kAuto is without it
};

struct ContextOptions {
  BackendKind backend = BackendKind::kAuto;
  Seconds init_deadline{300}, collective_deadline{600};
  /// What must be the same on all ranks: the program's settings as text. Compared at the start,
  /// together with the version of the library and the bytes of the program's file.
  std::string configuration = {};
  bool signals = true;  // SIGTERM, SIGUSR1 and SIGUSR2 make stop_requested() true
  FailureHandler on_failure = exit_on_failure;
  std::string dump_folder = {};  // see MpiOptions, also for the next two
  bool compare = true;
  bool ordered_sums = false;
};

/// The same program runs as one process, under mpirun and under srun --mpi=pmix:
///
///   int main(int argc, char** argv) try {
///     dist::Context context({.configuration = settings_as_text});
///     train(context.world());            // asks context.stop_requested() once per step
///     context.finish();
///   } catch (const std::exception& e) {
///     std::fprintf(stderr, "%s\n", e.what());
///     return dist::exit_code_of(e);
///   }
class Context {
 public:
  /// Collective. Throws DistributedError (82) when variables of launchers contradict each other,
  /// when they do not belong to this build's MPI, and when configurations, programs or versions
  /// differ between ranks: on all of them alike, before anything else was done.
  explicit Context(const ContextOptions& options = {});
  /// finish(), unless an exception passes: then this rank ends alone, and the launcher the others.
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// All ranks: for tensors of the cpu, and (as Peers) for values of the host.
  Communicator& world();
  /// All ranks, for tensors of `device`: world() where that is the cpu, NCCL's where it is this
  /// rank's gpu(). The first call for it is a collective; what NCCL reports, and what takes longer
  /// than the deadlines, is a failure of code 75 (ContextOptions::on_failure). Belongs to the
  /// context, and is gone after finish().
  Communicator& communicator(Device device);
  /// This rank's GPU (gpu_of_rank()). The first call is a collective.
  Device gpu();
  int rank() const;
  int size() const;
  int local_rank() const;  // on this machine
  int local_size() const;
  const Environment& environment() const;
  BackendKind backend() const;  // of world(): kSelf or kMpi

  /// Whether any rank was told to stop. A collective: all ranks ask after the same step, and get
  /// the same answer. Then: write a checkpoint and return ExitCode::kPreempted.
  bool stop_requested();
  /// This rank cannot go on, and does not wait for the others: the failure handler is called.
  void fail(ExitCode code, const std::string& why);
  /// Nothing is asked of the ranks any more. Collective.
  void finish();

 private:
  void start(const ContextOptions& options);
  struct State;
  std::unique_ptr<State> state_;
};
}  // namespace accrue::dist

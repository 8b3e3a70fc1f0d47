#include <stdlib.h>
#include <exception>
#include <accrue/dist/mpi/communicator.h>
#include <accrue/dist/mpi/session.h>

namespace accrue::dist {

MpiSession::MpiSession(const MpiOptions& options) : exceptions_(std::uncaught_exceptions()) {
  int initialized = 0;
  if (MPI_Initialized(&initialized) != MPI_SUCCESS || initialized)
    detail::fail(ErrorCode::kUnsupported,
                 "MpiSession: MPI was initialised before in this process; the session does that "
                 "itself, once");
  ACCRUE_CHECK(options.piece_bytes >= 64 && options.piece_bytes <= (std::int64_t{1} << 30) &&
                   options.scratch_bytes >= 0 && options.scratch_bytes <= (std::int64_t{1} << 30),
               "MpiOptions: piece_bytes must be in [64, 2^30], scratch_bytes in [0, 2^30]");
  // What an idle Open MPI does with the processor, and which algorithm is quick (openmpi-mca.conf).
  setenv("OMPI_MCA_mpi_yield_when_idle", "0", 0);
  setenv("OMPI_MCA_coll_libnbc_iallreduce_algorithm", "1", 0);
  engine_ = MpiEngine::start(options);
  world_ = mpi_communicator(engine_, engine_->world(), options);
}
MpiSession::~MpiSession() {
  try {
    if (std::uncaught_exceptions() > exceptions_)
      engine_->abandon();
    else
      finish();
  } catch (...) {
    engine_->abandon();
  }
}
Communicator& MpiSession::world() { return *world_; }
int MpiSession::local_rank() const { return engine_->local_rank(); }
int MpiSession::local_size() const { return engine_->local_size(); }
std::string MpiSession::library() const { return engine_->library(); }
void MpiSession::finish() {
  if (finished_) return;
  finished_ = true;
  engine_->finish();
}
void MpiSession::fail(ExitCode code, const std::string& why) { engine_->fail(code, why); }
std::string MpiSession::now() const { return engine_->recorder().now(); }
Watchdog& MpiSession::watchdog() { return engine_->watchdog(); }
}  // namespace accrue::dist

#pragma once
// How a program that is one of many ranks ends, so that a batch system knows what to do next.
#include <exception>
#include <string>
#include <accrue/core/error.h>

namespace accrue::dist {

enum class ExitCode : int {
  kDone = 0,
  kTimeout = 75,       // another rank is lost, or did not come in time
  kDesync = 76,        // the ranks did different things
  kOutOfMemory = 77,   // this rank has no memory left
  kCorrupt = 78,       // a file or checkpoint is damaged
  kNonFinite = 79,     // too many steps in a row had no finite gradient
  kHashMismatch = 80,  // ranks that must hold the same bits do not
  kPreempted = 81,     // told to stop, and a checkpoint is written: start again
  kBadLaunch = 82,     // started in a way that cannot work
};

/// Something went wrong between ranks. `exit_code()` is what the process should end with.
class DistributedError : public Error {
 public:
  DistributedError(ExitCode exit_code, const std::string& message)
      : Error(ErrorCode::kIo, message), exit_code_(exit_code) {}
  ExitCode exit_code() const noexcept { return exit_code_; }

 private:
  ExitCode exit_code_;
};

/// What main() returns for an exception that reached it: the code of a DistributedError, 77 and 78
/// for OutOfMemory and kCorrupt, 80 for RanksDiffer, 75 for kNccl, 2 for the caller's mistakes and
/// for what this build or machine cannot do, else 1.
int exit_code_of(const std::exception& error) noexcept;
}  // namespace accrue::dist

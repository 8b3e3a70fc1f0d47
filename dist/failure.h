#pragma once
// What happens when ranks can no longer work together.
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <accrue/dist/exit_codes.h>

namespace accrue::dist {

using Seconds = std::chrono::duration<double>;

/// A failure of the ranks together. What the others hold, and whether they live, is unknown.
struct Failure {
  ExitCode code = ExitCode::kTimeout;
  int rank = 0, size = 1;
  std::string text;  // what happened, and this rank's last collectives; lines
};
/// What to do about it; called once, on a thread of the communicator. When it returns, every work
/// that is waited for and every later collective throws a DistributedError with this text.
using FailureHandler = std::function<void(const Failure&)>;

/// Writes the text to stderr and ends the process by _exit(code): nothing is flushed, no destructor
/// runs, and no other rank is asked for anything; the launcher ends the others. This is the one
/// place where the library prints or ends a process, and only as long as a program has not put
/// another FailureHandler into its options.
[[noreturn]] void exit_on_failure(const Failure& failure);
}  // namespace accrue::dist

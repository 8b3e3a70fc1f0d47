#pragma once
// Being told to stop: SIGTERM (srun, a shell), SIGUSR1 and SIGUSR2 (which mpirun passes on; on
// SIGTERM it kills its ranks about two seconds later).

namespace accrue::dist {

/// While one lives, these signals set a flag instead of ending the process. One at a time; the
/// earlier handlers come back.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;
  /// The last signal that came to this process, 0: none. Signals during a checkpoint change
  /// nothing.
  static int received() noexcept;
};
}  // namespace accrue::dist

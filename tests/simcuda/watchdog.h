#pragma once
// Kernels that do not end.
#include <atomic>

namespace simcuda {

/// While one exists, the calling thread runs a kernel. When it has used the processor for longer
/// than set_watchdog_seconds() allows, the kernel is reported and ended.
class Watch {
 public:
  Watch();
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
};

/// The kernel's time is over, but it was not in its own code when that was noticed.
extern std::atomic<bool> watchdog_expired;
/// Where a signal came, from its ucontext_t: the address behind the instruction; may be nullptr.
const void* program_counter(void* context);
[[noreturn]] void end_endless_kernel(const char* file, int line);

}  // namespace simcuda

// The signal that comes when host code touches device memory, or a kernel memory that is not there.
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "block.h"
#include "execution.h"
#include "memory.h"
#include "report.h"
#include "watchdog.h"

namespace simcuda {

const void* program_counter(void* context) {
#if defined(__x86_64__)
  const auto* const c = static_cast<const ucontext_t*>(context);
  // place_of() takes the address behind the instruction.
  return reinterpret_cast<const void*>(c->uc_mcontext.gregs[REG_RIP] + 1);
#else
  (void)context;
  return nullptr;
#endif
}

namespace {

struct sigaction before;

void on_fault(int signal, siginfo_t* info, void* context) {
  const auto a = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (running) {
    in_kernel = false;
    fatal(format("a kernel touches %s", describe_address(a).c_str()) + " at " +
          place_of(program_counter(context)).text + describe_running_thread());
  }
  if (in_arena(a)) {
    fatal("host code touches " + describe_address(a) + " at " +
          place_of(program_counter(context)).text);
  }
  sigaction(signal, &before, nullptr);  // not ours: the instruction runs again and ends as it would
}

}  // namespace

void catch_faults() {
  // Each thread needs a stack of its own for it: a fiber may have run into its guard page.
  static thread_local bool has_stack = false;
  if (!has_stack) {
    has_stack = true;
    stack_t stack{};
    sigaltstack(nullptr, &stack);
    if (stack.ss_flags & SS_DISABLE) {
      stack.ss_flags = 0;
      stack.ss_size = 256 << 10;
      stack.ss_sp = std::malloc(stack.ss_size);
      sigaltstack(&stack, nullptr);
    }
  }
  struct sigaction present {};
  sigaction(SIGSEGV, nullptr, &present);
  if ((present.sa_flags & SA_SIGINFO) && present.sa_sigaction == on_fault) return;
  before = present;
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &ours, nullptr);
}

}  // namespace simcuda

#include "watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

#include "block.h"
#include "report.h"
#include "runtime.h"

namespace simcuda {
namespace {

struct Watched {
  std::mutex mutex;
  std::uint64_t kernel = 0;  // odd: one is running
  pthread_t thread;
  clockid_t clock;
};
Watched& watched() {
  static Watched& w = *new Watched;
  return w;
}
constexpr int kSignal = SIGVTALRM;  // does not queue, unlike real-time signals

double seconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

std::string what_is_wrong() {
  return format("the kernel has run for %g seconds,", control().watchdog_seconds);
}

bool in_kernel_file(const std::string& name) {
  return name.ends_with(".cu") || name.ends_with(".cuh");
}

// A kernel's own code holds no lock, so it can be left for good from here. In the checker or the
// simulator it cannot; the signal comes again.
void on_signal(int, siginfo_t*, void* context) {
  if (!running) return;
  watchdog_expired = true;
  if (!in_kernel) return;
  in_kernel = false;
  const void* const pc = program_counter(context);
  if (!in_kernel_file(place_of(pc).file)) {
    in_kernel = true;
    return;
  }
  report_at("watchdog", what_is_wrong(), pc);
  sigset_t ours;  // this function never returns, which would unblock it
  sigemptyset(&ours);
  sigaddset(&ours, kSignal);
  pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
  abort_kernel(cudaErrorLaunchTimeout);
}

void watch() {
  std::uint64_t seen = 0;
  double start = 0;
  Watched& w = watched();
  for (;;) {
    const double limit = control().watchdog_seconds;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(limit / 8, 0.002, 0.5)));
    const std::lock_guard<std::mutex> lock(w.mutex);
    if (w.kernel % 2 == 0) continue;
    const double used = seconds_of(w.clock);
    if (w.kernel != seen) {
      seen = w.kernel;
      start = used;
    } else if (used - start >= limit) {
      pthread_kill(w.thread, kSignal);
    }
  }
}

void start_watching() {
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(kSignal, &action, nullptr);
  std::thread(watch).detach();
}

}  // namespace

std::atomic<bool> watchdog_expired;

Watch::Watch() {
  static const bool started = (start_watching(), true);
  (void)started;
  Watched& w = watched();
  const std::lock_guard<std::mutex> lock(w.mutex);
  ++w.kernel;
  w.thread = pthread_self();
  pthread_getcpuclockid(w.thread, &w.clock);
  watchdog_expired = false;
}
Watch::~Watch() {
  Watched& w = watched();
  const std::lock_guard<std::mutex> lock(w.mutex);
  ++w.kernel;
}

void end_endless_kernel(const char* file, int line) {
  report_at("watchdog", what_is_wrong(), file, line);
  abort_kernel(cudaErrorLaunchTimeout);
}

}  // namespace simcuda

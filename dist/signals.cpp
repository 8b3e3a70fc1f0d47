#include <signal.h>
#include <array>
#include <atomic>
#include <accrue/core/error.h>
#include <accrue/dist/signals.h>

namespace accrue::dist {
namespace {
constexpr std::array<int, 3> kSignals = {SIGTERM, SIGUSR1, SIGUSR2};
std::atomic<int> last_signal{0};
std::array<struct sigaction, 3> before;
std::atomic<bool> active{false};
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) { last_signal.store(signal, std::memory_order_relaxed); }
}  // namespace

SignalScope::SignalScope() {
  ACCRUE_CHECK(!active.exchange(true), "SignalScope: there is one already");
  last_signal = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before[i]);
}
SignalScope::~SignalScope() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
  active = false;
}
int SignalScope::received() noexcept { return last_signal.load(std::memory_order_relaxed); }
}  // namespace accrue::dist

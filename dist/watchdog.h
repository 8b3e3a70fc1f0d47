#pragma once
// Deadlines that are kept even when the thread they are for is stuck in somebody else's library.
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <accrue/dist/failure.h>
#include <accrue/dist/turns.h>

namespace accrue::dist {

/// A thread that does nothing but look at the clock (CLOCK_MONOTONIC). Safe from any thread.
class Watchdog {
 public:
  /// `expired` is called on the watchdog's thread with what a deadline was set for.
  explicit Watchdog(std::function<void(const std::string&)> expired);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Until disarm(token) this much time may pass. `what`: "init", "#14 all_reduce ...".
  std::int64_t arm(Seconds time, std::string what);
  void disarm(std::int64_t token);
  /// The time begins anew.
  void restart(std::int64_t token, Seconds time);
  /// `look` is called on the watchdog's thread about ten times in a second.
  void set_look(std::function<void()> look);

 private:
  struct Deadline {
    Clock::time_point at;
    std::string what;
  };
  void run();
  std::function<void(const std::string&)> expired_;
  std::mutex mutex_;
  Condition changed_;
  std::map<std::int64_t, Deadline> deadlines_;
  std::function<void()> look_;
  std::int64_t next_ = 0;
  bool stop_ = false;
  Thread thread_;
};

/// While it lives a deadline is set.
class DeadlineScope {
 public:
  DeadlineScope(Watchdog& watchdog, Seconds time, std::string what)
      : watchdog_(watchdog), token_(watchdog.arm(time, std::move(what))) {}
  ~DeadlineScope() { watchdog_.disarm(token_); }
  DeadlineScope(const DeadlineScope&) = delete;
  DeadlineScope& operator=(const DeadlineScope&) = delete;

 private:
  Watchdog& watchdog_;
  std::int64_t token_;
};
}  // namespace accrue::dist

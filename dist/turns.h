#pragma once
// Where the threads of this folder wait, and what time it is for them.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace accrue::dist {

using Clock = std::chrono::steady_clock;  // never set back
using Lock = std::unique_lock<std::mutex>;

/// Whose turn it is, where that is not left to the system: tests run one thread at a time, choose
/// which by a seed, and own the clock. A thread that holds the turn must hold no lock when it gives
/// it up, but for the one that wait() is told.
class Turns {
 public:
  virtual ~Turns() = default;
  virtual Clock::time_point now() = 0;
  /// Another thread may go on here.
  virtual void point() = 0;
  virtual void sleep(Clock::duration time) = 0;
  /// Until `key` is notified, at the latest until `end`.
  virtual void wait(const void* key, Lock& lock, Clock::time_point end) = 0;
  virtual void notify(const void* key) = 0;
  /// Starts a thread whose turns these are; returns its number.
  virtual std::int64_t start(std::function<void()> body) = 0;
  virtual void join(std::int64_t thread) = 0;
};
/// Those of the calling thread; null (everywhere but in tests): the system's. set_turns() returns
/// the earlier ones.
Turns* turns() noexcept;
Turns* set_turns(Turns* turns) noexcept;

// What follows asks the turns where there are some, and the system where not.
Clock::time_point turn_time();
void turn_point();
void turn_sleep(Clock::duration time);

/// A condition variable. All that wait for it are notified.
class Condition {
 public:
  template <class Ready>
  void wait(Lock& lock, Ready ready) {
    while (!ready()) await(lock, Clock::time_point::max());
  }
  /// Whether it was ready in time.
  template <class Ready>
  bool wait_for(Lock& lock, Clock::duration time, Ready ready) {
    const Clock::time_point end = turn_time() + time;
    while (!ready()) {
      if (turn_time() >= end) return false;
      await(lock, end);
    }
    return true;
  }
  void notify_all();

 private:
  void await(Lock& lock, Clock::time_point end);
  std::condition_variable changed_;
};

/// A thread; joined or detached before it is destroyed.
class Thread {
 public:
  Thread() = default;
  /// `signals`: it may be the one that gets a signal; else those are for the program's own threads.
  explicit Thread(std::function<void()> body, bool signals = true);
  bool joinable() const { return turns_ ? number_ >= 0 : thread_.joinable(); }
  void join();
  void detach();

 private:
  std::thread thread_;
  Turns* turns_ = nullptr;
  std::int64_t number_ = -1;
};
}  // namespace accrue::dist

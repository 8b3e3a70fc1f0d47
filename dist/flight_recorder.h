#pragma once
// The last things that this rank did with others, for when it stops.
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <accrue/dist/turns.h>

namespace accrue::dist {

/// Safe from any thread; never waits for more than its own short lock.
class FlightRecorder {
 public:
  explicit FlightRecorder(std::size_t kept = 64) : kept_(kept) {}
  enum class State : std::uint8_t { kAsked, kStarted, kChecked, kEnded, kFailed };

  /// The program asked for something. `what`: "#14 all_reduce sum float32 n=1024 'gradients 2'".
  /// Returns its number here.
  std::int64_t ask(std::string what);
  /// It is now in that state (asked: waits for its turn; started: the other ranks are asked;
  /// checked: all ask for the same, and the data is exchanged).
  void mark(std::int64_t id, State state);

  /// One line for each of the last `count`, oldest first: how long ago, what, and how far it came.
  std::string text(std::size_t count) const;
  /// "idle since 3.2 s after #13 ...", or "3.2 s in #14 ...": what this rank is doing.
  std::string now() const;

 private:
  struct Entry {
    std::int64_t id;
    std::string what;
    State state;
    Clock::time_point asked, changed;
  };
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;
  std::size_t kept_;
  std::int64_t next_ = 0;
};
}  // namespace accrue::dist

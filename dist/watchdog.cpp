#include <utility>
#include <accrue/dist/watchdog.h>

namespace accrue::dist {

Watchdog::Watchdog(std::function<void(const std::string&)> expired)
    : expired_(std::move(expired)), thread_([this] { run(); }, false) {}
Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::int64_t Watchdog::arm(Seconds time, std::string what) {
  const std::lock_guard lock(mutex_);
  const auto at = turn_time() + std::chrono::duration_cast<Clock::duration>(time);
  deadlines_.emplace(next_, Deadline{at, std::move(what)});
  return next_++;
}
void Watchdog::disarm(std::int64_t token) {
  const std::lock_guard lock(mutex_);
  deadlines_.erase(token);
}
void Watchdog::restart(std::int64_t token, Seconds time) {
  const std::lock_guard lock(mutex_);
  if (const auto at = deadlines_.find(token); at != deadlines_.end())
    at->second.at = turn_time() + std::chrono::duration_cast<Clock::duration>(time);
}
void Watchdog::set_look(std::function<void()> look) {
  const std::lock_guard lock(mutex_);
  look_ = std::move(look);
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, std::chrono::milliseconds(100), [this] { return stop_; });
    std::string late;
    const auto time = turn_time();
    for (auto at = deadlines_.begin(); at != deadlines_.end(); ++at)
      if (at->second.at <= time) {
        late = std::move(at->second.what);
        deadlines_.erase(at);
        break;
      }
    if (!late.empty()) {
      lock.unlock();
      expired_(late);
      lock.lock();
    }
    if (look_) look_();
  }
}
}  // namespace accrue::dist

#include <algorithm>
#include <cstdio>
#include <accrue/dist/flight_recorder.h>

namespace accrue::dist {
namespace {

const char* name_of(FlightRecorder::State state) {
  switch (state) {
    case FlightRecorder::State::kAsked: return "waits for its turn";
    case FlightRecorder::State::kStarted: return "waits for the other ranks";
    case FlightRecorder::State::kChecked: return "exchanges data";
    case FlightRecorder::State::kEnded: return "ended";
    case FlightRecorder::State::kFailed: return "failed";
  }
  return "?";
}
std::string seconds(Clock::duration d) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", std::chrono::duration<double>(d).count());
  return text;
}
}  // namespace

std::int64_t FlightRecorder::ask(std::string what) {
  const std::lock_guard lock(mutex_);
  const auto time = turn_time();
  if (entries_.size() == kept_) entries_.pop_front();
  entries_.push_back({next_, std::move(what), State::kAsked, time, time});
  return next_++;
}

void FlightRecorder::mark(std::int64_t id, State state) {
  const std::lock_guard lock(mutex_);
  const auto at =
      std::find_if(entries_.rbegin(), entries_.rend(), [id](const Entry& e) { return e.id == id; });
  if (at == entries_.rend()) return;
  at->state = state;
  at->changed = turn_time();
}

std::string FlightRecorder::text(std::size_t count) const {
  const std::lock_guard lock(mutex_);
  const auto time = turn_time();
  std::string out;
  const std::size_t first = entries_.size() > count ? entries_.size() - count : 0;
  for (std::size_t i = first; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    out += "\n    " + seconds(time - e.asked) + " ago: " + e.what + ": " + name_of(e.state);
    if (e.state == State::kEnded) out += " after " + seconds(e.changed - e.asked);
  }
  return out.empty() ? "\n    none" : out;
}

std::string FlightRecorder::now() const {
  const std::lock_guard lock(mutex_);
  const auto time = turn_time();
  for (const Entry& e : entries_)
    if (e.state != State::kEnded)
      return "since " + seconds(time - e.asked) + " in " + e.what + " (" + name_of(e.state) + ")";
  if (entries_.empty()) return "has asked for nothing yet";
  const Entry& last = entries_.back();
  return "has asked for nothing since " + last.what + " ended " + seconds(time - last.changed) +
         " ago";
}
}  // namespace accrue::dist

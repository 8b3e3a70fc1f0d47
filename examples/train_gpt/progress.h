#pragma once
// What a person sees while training: a bar on a terminal, a plain line every few seconds elsewhere.
#include <chrono>
#include <cstdint>
#include <string>

namespace train_gpt {

struct Status {
  std::int64_t step = 0, steps = 0;
  double loss = 0, validation = -1;  // validation < 0: not known yet
  double tokens_per_second = 0;
  double seconds_left = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t skipped = 0;
};

class Progress {
 public:
  /// Writes to stdout. `quiet`: nothing but notes. `silent`: nothing; another rank speaks.
  explicit Progress(bool quiet, bool silent = false);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(const Status& status, bool force = false);
  /// A line of text of its own; the bar continues below.
  void note(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  bool quiet_, silent_, terminal_, drawn_ = false;
  Clock::time_point last_;
};

std::string format_duration(double seconds);  // "1:05", "2:03:00"
}  // namespace train_gpt

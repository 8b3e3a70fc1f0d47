#include "examples/train_gpt/progress.h"
#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <accrue/core/allocator.h>

namespace train_gpt {

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-:--";
  const auto s = static_cast<long long>(std::llround(seconds));
  char text[48];
  if (s >= 3600)
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  else
    std::snprintf(text, sizeof text, "%lld:%02lld", s / 60, s % 60);
  return text;
}

Progress::Progress(bool quiet, bool silent)
    : quiet_(quiet || silent),
      silent_(silent),
      terminal_(isatty(STDOUT_FILENO) == 1),
      last_(Clock::now() - std::chrono::hours(1)) {}
Progress::~Progress() {
  if (drawn_) std::putchar('\n');
}

void Progress::show(const Status& s, bool force) {
  if (quiet_) return;
  const auto now = Clock::now();
  const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(4000);
  if (!force && now - last_ < pause) return;
  last_ = now;
  char text[256];
  std::snprintf(text, sizeof text, "step %lld/%lld  loss %.4f", static_cast<long long>(s.step),
                static_cast<long long>(s.steps), s.loss);
  std::string line = text;
  if (s.validation >= 0) {
    std::snprintf(text, sizeof text, "  val %.4f", s.validation);
    line += text;
  }
  std::snprintf(text, sizeof text, "  %.0f tokens/s  ETA %s  peak %s", s.tokens_per_second,
                format_duration(s.seconds_left).c_str(),
                accrue::format_bytes(s.peak_bytes).c_str());
  line += text;
  if (s.skipped > 0) line += "  skipped " + std::to_string(s.skipped);
  if (!terminal_) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    return;
  }
  winsize size{};
  const int columns =
      ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  const int width = std::clamp(columns - static_cast<int>(line.size()) - 4, 0, 30);
  std::string bar;
  if (width >= 5) {
    const double share =
        s.steps > 0 ? static_cast<double>(s.step) / static_cast<double>(s.steps) : 0;
    const int full = static_cast<int>(share * width);
    bar = "[" + std::string(static_cast<std::size_t>(full), '#') +
          std::string(static_cast<std::size_t>(width - full), '.') + "] ";
  }
  line = bar + line;
  line.resize(std::min(line.size(), static_cast<std::size_t>(columns - 1)));
  std::printf("\r%s\033[K", line.c_str());
  std::fflush(stdout);
  drawn_ = true;
}

void Progress::note(const std::string& text) {
  if (silent_) return;
  if (drawn_) std::fputs("\r\033[K", stdout);
  drawn_ = false;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}
}  // namespace train_gpt

#include <mutex>
#include <utility>
#include <accrue/core/log.h>

namespace accrue {
namespace {
std::mutex mutex;
LogCallback current;
}  // namespace

LogCallback set_log_callback(LogCallback callback) {
  const std::lock_guard lock(mutex);
  return std::exchange(current, std::move(callback));
}

void log(LogLevel level, std::string_view text) {
  LogCallback callback;
  {
    const std::lock_guard lock(mutex);
    callback = current;
  }
  if (callback) callback(level, text);
}
}  // namespace accrue

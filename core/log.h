#pragma once
// The library never prints. It says what a program may want to know through one callback.
#include <functional>
#include <string_view>

namespace accrue {
enum class LogLevel { kDebug, kInfo, kWarning, kError };
using LogCallback = std::function<void(LogLevel, std::string_view)>;

/// Replaces the callback; returns the earlier one. An empty callback (the default) drops every
/// line.
LogCallback set_log_callback(LogCallback callback);
/// Safe from any thread; an exception thrown by the callback reaches the caller.
void log(LogLevel level, std::string_view text);
}  // namespace accrue

#include <mutex>
#include <set>
#include <string>
#include <accrue/core/name_scope.h>

namespace accrue {
namespace {
thread_local std::string_view current_path;
}

std::string_view intern(std::string_view text) {
  static std::mutex mutex;
  static auto& all =
      *new std::set<std::string, std::less<>>;  // views stay valid in static destructors too
  const std::lock_guard lock(mutex);
  auto at = all.find(text);
  if (at == all.end()) at = all.emplace(text).first;
  return *at;
}

NameScope::NameScope(std::string_view path) noexcept : previous_(current_path) {
  current_path = path;
}
NameScope::~NameScope() { current_path = previous_; }
std::string_view NameScope::current() noexcept { return current_path; }
}  // namespace accrue

#pragma once
// Names: interned strings, and the path of the module that is running ("h.3.mlp").
#include <string_view>

namespace accrue {

/// The same text always gives the same view, valid until the process ends. Safe from any thread.
std::string_view intern(std::string_view text);

/// While it lives, errors and allocations of this thread carry this module path.
/// `path` must be interned (or a literal); layers intern theirs once, when they are built.
class NameScope {
 public:
  explicit NameScope(std::string_view path) noexcept;
  ~NameScope();
  NameScope(const NameScope&) = delete;
  NameScope& operator=(const NameScope&) = delete;
  static std::string_view current() noexcept;

 private:
  std::string_view previous_;
};
}  // namespace accrue

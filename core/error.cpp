#include <accrue/core/error.h>
#include <accrue/core/name_scope.h>

namespace accrue::detail {
namespace {
std::string with_path(std::string message) {
  const std::string_view path = NameScope::current();
  return path.empty() ? message : concat(path, ": ", message);
}
}  // namespace

void fail(ErrorCode code, std::string message) { throw Error(code, with_path(std::move(message))); }
void fail_shape(std::string message) { throw ShapeError(with_path(std::move(message))); }
}  // namespace accrue::detail

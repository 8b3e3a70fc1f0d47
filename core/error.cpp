#include <sstream>
#include <accrue/core/error.h>
#include <accrue/core/name_scope.h>

namespace accrue::detail {
namespace {
std::string with_path(std::string message) {
  const std::string_view path = NameScope::current();
  return path.empty() ? message : concat({path, ": ", message});
}

template <class T>
void put(std::ostream& out, const void* value) {
  out << *static_cast<const T*>(value);
}
}  // namespace

void Piece::write_text(std::ostream& out, const void* text) {
  out << static_cast<const char*>(text);
}
#define ACCRUE_WRITE(T)                                         \
  template <>                                                   \
  void Piece::write<T>(std::ostream & out, const void* value) { \
    put<T>(out, value);                                         \
  }
ACCRUE_WRITE(bool)
ACCRUE_WRITE(char)
ACCRUE_WRITE(int)
ACCRUE_WRITE(unsigned)
ACCRUE_WRITE(long)
ACCRUE_WRITE(unsigned long)
ACCRUE_WRITE(float)
ACCRUE_WRITE(double)
ACCRUE_WRITE(const char*)
ACCRUE_WRITE(std::string)
ACCRUE_WRITE(std::string_view)
#undef ACCRUE_WRITE

std::string concat(std::initializer_list<Piece> pieces) {
  std::ostringstream out;
  for (const Piece& piece : pieces) piece.write_to(out);
  return out.str();
}

void fail(ErrorCode code, std::string message) { throw Error(code, with_path(std::move(message))); }
void fail_shape(std::string message) { throw ShapeError(with_path(std::move(message))); }
}  // namespace accrue::detail

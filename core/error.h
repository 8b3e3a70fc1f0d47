#pragma once
// Errors. Callers get one exception type with a code; nothing in this library exits, aborts or
// prints.
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace accrue {

enum class ErrorCode {
  kInvalidArgument,  // the caller's mistake: wrong shape, dtype, device, option
  kUnsupported,      // right, but not in this build or on this machine
  kOutOfMemory,      // the budget or the device is exhausted; OutOfMemory has the details
  kIo,               // a file could not be read or written
  kCorrupt,          // a file's content is wrong
  kCuda,
  kNccl,
  kInternal,  // our mistake
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// A tensor has the wrong shape. A type of its own because callers catch it.
class ShapeError : public Error {
 public:
  explicit ShapeError(const std::string& message) : Error(ErrorCode::kInvalidArgument, message) {}
};

/// A named group of live allocations, largest first in OutOfMemory::live().
struct LiveBlock {
  std::string name;      // "h.3.mlp/gelu.y"
  std::string category;  // "activation"
  std::int64_t bytes = 0;
  std::int64_t count = 0;
};

/// An allocation would have gone over the budget, or the device has no more memory.
class OutOfMemory : public Error {
 public:
  OutOfMemory(const std::string& message, std::int64_t requested, std::int64_t budget,
              std::int64_t in_use, std::vector<LiveBlock> live)
      : Error(ErrorCode::kOutOfMemory, message),
        requested_(requested),
        budget_(budget),
        in_use_(in_use),
        live_(std::move(live)) {}
  std::int64_t requested() const noexcept { return requested_; }  // bytes asked for
  std::int64_t budget() const noexcept { return budget_; }        // bytes; 0: no budget was set
  std::int64_t in_use() const noexcept { return in_use_; }        // bytes live at that moment
  /// The largest single allocation that would have fitted, in bytes (0 without a budget).
  std::int64_t would_fit() const noexcept { return budget_ > in_use_ ? budget_ - in_use_ : 0; }
  const std::vector<LiveBlock>& live() const noexcept { return live_; }

 private:
  std::int64_t requested_, budget_, in_use_;
  std::vector<LiveBlock> live_;
};

namespace detail {
/// Throws Error; the text is preceded by the current module path (see NameScope).
[[noreturn]] void fail(ErrorCode code, std::string message);
[[noreturn]] void fail_shape(std::string message);

/// A part of a message: anything that can be written to a stream, without its type. So the many
/// places that check something compile to a list of addresses and one call.
class Piece {
 public:
  template <class T>
  Piece(const T& value) : value_(&value), write_(&write<T>) {}
  template <std::size_t n>
  Piece(const char (&text)[n]) : value_(text), write_(&write_text) {}
  void write_to(std::ostream& out) const { write_(out, value_); }

 private:
  template <class T>
  static void write(std::ostream& out, const void* value) {
    out << *static_cast<const T*>(value);
  }
  static void write_text(std::ostream& out, const void* text);
  const void* value_;
  void (*write_)(std::ostream&, const void*);
};
template <>
void Piece::write<bool>(std::ostream&, const void*);
template <>
void Piece::write<char>(std::ostream&, const void*);
template <>
void Piece::write<int>(std::ostream&, const void*);
template <>
void Piece::write<unsigned>(std::ostream&, const void*);
template <>
void Piece::write<long>(std::ostream&, const void*);
template <>
void Piece::write<unsigned long>(std::ostream&, const void*);
template <>
void Piece::write<float>(std::ostream&, const void*);
template <>
void Piece::write<double>(std::ostream&, const void*);
template <>
void Piece::write<const char*>(std::ostream&, const void*);
template <>
void Piece::write<std::string>(std::ostream&, const void*);
template <>
void Piece::write<std::string_view>(std::ostream&, const void*);

[[gnu::cold]] std::string concat(std::initializer_list<Piece> pieces);
template <class... Parts>
std::string concat(const Parts&... parts) {
  return concat({Piece(parts)...});
}
}  // namespace detail
}  // namespace accrue

/// Checks what a caller handed us. Always on. The text says: op, what was expected, what came, a
/// hint. `ACCRUE_CHECK(p < 1, "dropout: p must be in [0, 1), got ", p);`
#define ACCRUE_CHECK(condition, ...)                                   \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::accrue::detail::fail(::accrue::ErrorCode::kInvalidArgument,    \
                             ::accrue::detail::concat({__VA_ARGS__})); \
  } while (false)

/// The same for shapes: throws ShapeError.
#define ACCRUE_CHECK_SHAPE(condition, ...)                                   \
  do {                                                                       \
    if (!(condition)) [[unlikely]]                                           \
      ::accrue::detail::fail_shape(::accrue::detail::concat({__VA_ARGS__})); \
  } while (false)

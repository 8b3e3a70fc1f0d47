#include <array>
#include <cstdio>
#include <accrue/core/error.h>
#include <accrue/data/utf8.h>

namespace accrue::data {
namespace {
unsigned byte_at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
}
[[noreturn]] void fail_utf8(std::size_t offset, unsigned byte, const char* what) {
  std::array<char, 8> hex{};
  std::snprintf(hex.data(), hex.size(), "0x%02X", byte);
  accrue::detail::fail(
      ErrorCode::kInvalidArgument,
      accrue::detail::concat("invalid UTF-8 at byte ", offset, " (", hex.data(), "): ", what,
                             "; convert the text to UTF-8 or use the byte tokenizer"));
}
}  // namespace

char32_t decode_utf8(std::string_view text, std::size_t& offset) {
  const std::size_t at = offset;
  const unsigned first = byte_at(text, at);
  if (first < 0x80) {
    ++offset;
    return first;
  }
  if (first < 0xC0) fail_utf8(at, first, "a continuation byte without a lead byte");
  if (first < 0xC2 || first > 0xF4) fail_utf8(at, first, "this byte never occurs in UTF-8");
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  char32_t c = first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const unsigned next = byte_at(text, at + i);
    if (at + i >= text.size()) fail_utf8(at, first, "the text ends inside a character");
    // The second byte is narrower where the full range would be overlong, a surrogate or too large.
    const unsigned low = i > 1 ? 0x80u : first == 0xE0 ? 0xA0u : first == 0xF0 ? 0x90u : 0x80u;
    const unsigned high = i > 1 ? 0xBFu : first == 0xED ? 0x9Fu : first == 0xF4 ? 0x8Fu : 0xBFu;
    if (next < low || next > high) fail_utf8(at, first, "a wrong continuation byte follows");
    c = (c << 6) | (next & 0x3Fu);
  }
  offset = at + length;
  return c;
}

void append_utf8(std::string& out, char32_t c) {
  ACCRUE_CHECK(c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF), to_string(c),
               " is not a Unicode scalar value");
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6)), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12)), put(0x80 | ((c >> 6) & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18)), put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

std::string to_string(char32_t c) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "U+%04X", static_cast<unsigned>(c));
  return text.data();
}
}  // namespace accrue::data

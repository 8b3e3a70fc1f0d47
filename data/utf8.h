#pragma once
// UTF-8, strictly as Unicode 15 section 3.9, table 3-7 defines it.
#include <cstddef>
#include <string>
#include <string_view>

namespace accrue::data {

/// The code point that begins at text[offset]; offset moves behind it. Overlong forms, surrogates,
/// values above U+10FFFF, lone and missing continuation bytes are errors that name the offset.
char32_t decode_utf8(std::string_view text, std::size_t& offset);
void append_utf8(std::string& out, char32_t c);
std::string to_string(char32_t c);  // "U+00E9"
}  // namespace accrue::data

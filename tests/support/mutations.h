#pragma once
// Bytes of a file, changed at random.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <accrue/core/random.h>

namespace accrue::test {

/// One to three bytes or so of `bytes` are replaced, inserted or erased: by the likely ones of JSON
/// and numbers, and mostly before the last `data` bytes. The same seed, the same change.
inline std::string mutated(std::string bytes, std::uint64_t seed, std::size_t data = 0) {
  constexpr std::string_view kLikely = "0123456789{}[]\",:\\ue-.\0\xFF ntf";
  const std::uint64_t changes = mix64(seed) % 3 + 1;
  for (std::uint64_t k = 0; k < changes; ++k) {
    const std::uint64_t r = mix64(seed * 7 + k + 1000003);
    const std::size_t room =
        r % 16 == 0 || bytes.size() <= data ? bytes.size() : bytes.size() - data;
    if (room == 0) return bytes;
    const std::size_t at = r / 16 % room;
    const char to = kLikely[(r >> 40) % kLikely.size()];
    switch ((r >> 32) % 3) {
      case 0: bytes[at] = to; break;
      case 1: bytes.insert(at, 1, to); break;
      default: bytes.erase(at, 1 + (r >> 50) % 4);
    }
  }
  return bytes;
}
}  // namespace accrue::test

#pragma once
// A 64-bit hash for comparing runs and finding damaged files. Not for adversaries.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <accrue/core/random.h>

namespace accrue {

/// Depends on every byte, on the length and on `seed`; chain calls by passing the last result as
/// the seed.
inline std::uint64_t hash64(const void* data, std::size_t bytes, std::uint64_t seed = 0) {
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint64_t h = mix64(seed ^ (bytes * 0x9E3779B97F4A7C15u));
  for (; bytes >= 8; bytes -= 8, p += 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    h = (h ^ word) * 0xFF51AFD7ED558CCDu;
    h ^= h >> 32;
  }
  std::uint64_t last = 0;
  if (bytes > 0) std::memcpy(&last, p, bytes);
  return mix64(h ^ last);
}
inline std::uint64_t hash64(std::string_view text, std::uint64_t seed = 0) {
  return hash64(text.data(), text.size(), seed);
}
/// 16 hexadecimal digits.
std::string to_hex(std::uint64_t value);
/// The hash of a tensor's elements, dtype and element count. Waits for the device.
std::uint64_t hash64(const Tensor& tensor, std::uint64_t seed = 0);
}  // namespace accrue

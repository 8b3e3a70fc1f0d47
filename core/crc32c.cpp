#include <array>
#include <cstdio>
#include <cstring>
#include <accrue/core/crc32c.h>
#if defined(__x86_64__) && defined(__GNUC__)
  #include <nmmintrin.h>
#endif

namespace accrue {
namespace {
constexpr std::uint32_t kPolynomial = 0x82F63B78u;  // reflected

// table[k][b]: the remainder of byte b followed by k zero bytes.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> t{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t r = b;
    for (int i = 0; i < 8; ++i) r = (r >> 1) ^ (r & 1u ? kPolynomial : 0u);
    t[0][b] = r;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b) t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xFFu];
  return t;
}();

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::span<const std::byte> data,
                                                               std::uint32_t crc) {
  std::uint64_t r = crc ^ 0xFFFFFFFFu;
  const std::byte* p = data.data();
  std::size_t n = data.size();
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    r = _mm_crc32_u64(r, word);
  }
  auto tail = static_cast<std::uint32_t>(r);
  for (; n > 0; --n, ++p) tail = _mm_crc32_u8(tail, static_cast<unsigned char>(*p));
  return tail ^ 0xFFFFFFFFu;
}
bool has_instruction() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2");
}
#endif

// Polynomials modulo that of the CRC, reflected: bit 31 is x^0.
constexpr std::uint32_t kOne = 1u << 31;
constexpr std::uint32_t times(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b & 1u ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}
// x to the power 8 * 2^k: what 2^k more bytes do to a remainder.
constexpr auto kBytes = [] {
  std::array<std::uint32_t, 64> t{};
  t[0] = kOne >> 8;
  for (std::size_t k = 1; k < t.size(); ++k) t[k] = times(t[k - 1], t[k - 1]);
  return t;
}();
}  // namespace

std::uint32_t detail::crc32c_by_tables(std::span<const std::byte> data, std::uint32_t crc) {
  std::uint32_t r = crc ^ 0xFFFFFFFFu;
  const auto* p = reinterpret_cast<const unsigned char*>(data.data());
  std::size_t n = data.size();
  for (; n >= 8; n -= 8, p += 8) {
    r ^= static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8 |
         static_cast<std::uint32_t>(p[2]) << 16 | static_cast<std::uint32_t>(p[3]) << 24;
    r = kTables[7][r & 0xFFu] ^ kTables[6][r >> 8 & 0xFFu] ^ kTables[5][r >> 16 & 0xFFu] ^
        kTables[4][r >> 24] ^ kTables[3][p[4]] ^ kTables[2][p[5]] ^ kTables[1][p[6]] ^
        kTables[0][p[7]];
  }
  for (; n > 0; --n, ++p) r = (r >> 8) ^ kTables[0][(r ^ *p) & 0xFFu];
  return r ^ 0xFFFFFFFFu;
}

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool fast = has_instruction();
  if (fast) return by_instruction(data, crc);
#endif
  return detail::crc32c_by_tables(data, crc);
}

std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::int64_t bytes) {
  auto n = static_cast<std::uint64_t>(bytes);
  for (std::size_t k = 0; n != 0; n >>= 1, ++k)
    if (n & 1u) first = times(kBytes[k], first);
  return first ^ second;
}

std::string to_hex(std::uint32_t crc) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", crc);
  return text;
}
}  // namespace accrue

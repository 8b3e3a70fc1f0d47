#include <cstring>
#include <string>
#include <vector>
#include <accrue/core/crc32c.h>
#include <accrue/core/random.h>
#include "tests/support/catch.h"

using namespace accrue;

namespace {
std::vector<std::byte> random_bytes(std::size_t count) {
  std::vector<std::byte> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(mix64(i));
  return out;
}
std::vector<std::byte> counting(int first, int step) {
  std::vector<std::byte> out;
  for (int i = 0; i < 32; ++i) out.push_back(static_cast<std::byte>(first + step * i));
  return out;
}
}  // namespace

TEST_CASE("crc32c: the values of RFC 3720", "[core][crc32c][cpu]") {
  const std::string digits = "123456789";
  CHECK(crc32c(std::as_bytes(std::span(digits))) == 0xE3069283u);
  CHECK(crc32c({}) == 0);
  CHECK(crc32c(counting(0, 0)) == 0x8A9136AAu);
  CHECK(crc32c(counting(0xFF, 0)) == 0x62A8AB43u);
  CHECK(crc32c(counting(0, 1)) == 0x46DD794Eu);
  CHECK(crc32c(counting(31, -1)) == 0x113FDB5Cu);
  CHECK(to_hex(std::uint32_t{0xA}) == "0000000a");
}

TEST_CASE("crc32c: tables and instruction agree, at any length and alignment",
          "[core][crc32c][cpu]") {
  const auto bytes = random_bytes(300);
  for (std::size_t first = 0; first < 9; ++first)
    for (std::size_t count = 0; first + count <= bytes.size(); ++count) {
      const auto part = std::span(bytes).subspan(first, count);
      REQUIRE(crc32c(part, 77) == accrue::detail::crc32c_by_tables(part, 77));
    }
}

TEST_CASE("crc32c: parts in a row and parts combined are the whole", "[core][crc32c][cpu]") {
  const auto bytes = random_bytes(70'000);
  const std::uint32_t whole = crc32c(bytes);
  for (const std::size_t cut : {0u, 1u, 7u, 8u, 4096u, 65'537u, 70'000u}) {
    const auto first = std::span(bytes).first(cut), second = std::span(bytes).subspan(cut);
    CHECK(crc32c(second, crc32c(first)) == whole);
    CHECK(crc32c_combine(crc32c(first), crc32c(second), static_cast<std::int64_t>(second.size())) ==
          whole);
  }
}

TEST_CASE("crc32c: every flipped bit is seen", "[core][crc32c][cpu]") {
  auto bytes = random_bytes(64);
  const std::uint32_t whole = crc32c(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1u << bit % 8);
    bytes[bit / 8] ^= mask;
    REQUIRE(crc32c(bytes) != whole);
    bytes[bit / 8] ^= mask;
  }
}

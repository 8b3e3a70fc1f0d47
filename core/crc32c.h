#pragma once
// CRC-32C (Castagnoli): polynomial 0x1EDC6F41, reflected, initial value and final xor 0xFFFFFFFF;
// RFC 3720 (iSCSI), appendix B.4. Finds every error burst of up to 32 bits and every flip of few
// bits. Not for adversaries.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace accrue {

/// Goes on from `crc`, the value of the bytes before; 0 to begin. By the processor's instruction
/// where it has one, else by tables.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc = 0);
/// The value of a run of bytes from those of its two parts; `bytes` is the length of the second.
std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::int64_t bytes);
/// 8 hexadecimal digits, lower case.
std::string to_hex(std::uint32_t crc);

namespace detail {
std::uint32_t crc32c_by_tables(std::span<const std::byte> data, std::uint32_t crc);
}
}  // namespace accrue

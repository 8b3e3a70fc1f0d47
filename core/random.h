#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
// numbers: as easy as 1, 2, 3", SC'11). A number is a pure function of its place, so nothing is
// ever rewound or saved, and the split of a batch, recompute and the number of threads change
// nothing.
#include <array>
#include <cstdint>
#include <accrue/core/tensor.h>

namespace accrue {

/// The ten rounds: 128-bit counter and 64-bit key to 128 random bits.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c,
                                                  std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(a)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

/// Spreads 64 bits over 64 bits (splitmix64's finaliser); for making keys from small numbers.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// What the random numbers of one micro-batch depend on. On the device, so that a captured kernel
/// reads the current step. Element e of row r at site s gets: counter {e / 8 or e / 4, s, sample
/// low, sample high} and key mix64(mix64(seed) + step). Where tensors hold a part of each sample,
/// e counts from the sample's beginning.
struct RandomState {
  Tensor key;                      // int64 (2): seed, step
  Tensor samples;                  // int64 (batch): the GLOBAL sample index of each leading row
  std::int64_t first_element = 0;  // of its sample that each row begins with; a multiple of 8
  bool defined() const { return key.defined() && samples.defined(); }
};
constexpr std::uint64_t random_key(std::uint64_t seed, std::uint64_t step) {
  return mix64(mix64(seed) + step);
}
}  // namespace accrue

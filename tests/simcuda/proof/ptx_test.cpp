// The twins of inline PTX against plain matrix products and copies.
#include <bit>
#include <cmath>

#include "kernels.h"
#include "planted_bugs.h"
#include "support.h"

namespace {

std::uint16_t bfloat(float v) {
  return std::uint16_t(std::bit_cast<std::uint32_t>(v) >> 16);  // v has 8 bits
}

// Small whole numbers: products and sums are exact, in any order.
float whole(int i, int salt) { return float((i * 37 + salt * 11 + i * i * 5) % 23 - 11); }

}  // namespace

TEST_CASE("ldmatrix and mma of bfloat16 give the matrix product, however the fragments come") {
  const Settled settled;
  const auto loads = GENERATE(Loads::kByHand, Loads::kX4, Loads::kX2Trans, Loads::kX4Trans,
                              Loads::kX1, Loads::kX1Trans);
  std::vector<std::uint16_t> a(256), b(128);
  for (int i = 0; i < 256; ++i) a[std::size_t(i)] = bfloat(whole(i, 1));
  for (int i = 0; i < 128; ++i) b[std::size_t(i)] = bfloat(whole(i, 2));
  const DeviceArray<std::uint16_t> da(a), db(b);
  const DeviceArray<float> dd(128);
  const Stream s;
  REQUIRE(run_mma_bf16(loads, da, db, dd, s) == cudaSuccess);
  REQUIRE(s.wait() == cudaSuccess);
  CHECK(kinds() == Kinds{});
  const std::vector<float> d = dd.read();
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += whole(i * 16 + k, 1) * whole(k * 8 + j, 2);
      CAPTURE(int(loads), i, j);
      CHECK(d[std::size_t(i * 8 + j)] == sum);
    }
  }
}

TEST_CASE("mma of tf32 gives the matrix product of the upper 19 bits") {
  const Settled settled;
  const auto loads = GENERATE(Loads::kByHand, Loads::kX4);
  const float extra = GENERATE(0.0f, 0x1p-12f, 0x1p-10f);  // below and at the last bit of 1
  std::vector<float> a(128), b(64);
  for (int i = 0; i < 128; ++i) a[std::size_t(i)] = i % 7 == 3 ? 1 + extra : whole(i, 3);
  for (int i = 0; i < 64; ++i) b[std::size_t(i)] = whole(i, 4);
  const DeviceArray<float> da(a), db(b), dd(128);
  const Stream s;
  REQUIRE(run_mma_tf32(loads, da, db, dd, s) == cudaSuccess);
  REQUIRE(s.wait() == cudaSuccess);
  CHECK(kinds() == Kinds{});
  const std::vector<float> d = dd.read();
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float sum = 0;
      for (int k = 0; k < 8; ++k) {
        const float x = a[std::size_t(i * 8 + k)];
        sum += (extra == 0x1p-12f ? std::trunc(x) : x) * b[std::size_t(k * 8 + j)];
      }
      CAPTURE(int(loads), extra, i, j);
      CHECK(d[std::size_t(i * 8 + j)] == sum);
    }
  }
}

TEST_CASE("cp.async copies 4, 8 and 16 bytes and fills with zeros") {
  const Settled settled;
  const int bytes = GENERATE(4, 8, 16);
  const int n = GENERATE(1, 2, 3, 4, 6, 125, 128, 202);
  if (bytes == 8 && n % 2) return;
  const std::size_t padded = bytes == 16 ? std::size_t(n + 3) / 4 * 4 : std::size_t(n);
  std::vector<float> in(std::size_t(n), 0.0f);
  for (int i = 0; i < n; ++i) in[std::size_t(i)] = float(i + 1);
  const DeviceArray<float> din(in), out(padded);
  const Stream s;
  REQUIRE(run_cp_async(bytes, din, out, n, s) == cudaSuccess);
  REQUIRE(s.wait() == cudaSuccess);
  CHECK(kinds() == Kinds{});
  in.resize(padded, 0.0f);
  CAPTURE(bytes, n);
  CHECK(out.read() == in);
}

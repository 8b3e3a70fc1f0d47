// The twins of inline PTX.
#include "simcuda/ptx.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "block.h"
#include "report.h"

namespace simcuda {
namespace {

void misaligned(const char* what, const void* p, const void* pc) {
  report_at("misaligned", format("%s with address %p", what, p), pc);
  abort_kernel(cudaErrorMisalignedAddress);
}

void complete(const AsyncCopy& c) {
  check_kernel_access(reinterpret_cast<std::uintptr_t>(c.shared), std::size_t(c.bytes),
                      Touch::kWrite, c.pc);
  std::memcpy(c.shared, c.global, std::size_t(c.source_bytes));
  std::memset(c.shared + c.source_bytes, 0, std::size_t(c.bytes - c.source_bytes));
}

float bfloat(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
float tf32(std::uint32_t bits) { return std::bit_cast<float>(bits & 0xffffe000u); }

struct Fragments {
  unsigned a[4], b[2];
  float d[4];
};

// With g = lane / 4 and t = lane % 4: d holds rows g, g + 8 and columns 2t, 2t + 1.
void multiply(Warp& warp, unsigned lanes, int kind) {
  float a[16][16] = {}, b[16][8] = {}, d[16][8] = {};
  const int depth = Mma(kind) == Mma::kBf16 ? 16 : 8;
  if (lanes != ~0u) return;
  Fragments f[32];
  for (int l = 0; l < 32; ++l) {
    std::memcpy(&f[l], warp.exchange[l], sizeof f[l]);
    const int g = l / 4, t = l % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = g + i % 2 * 8;
      if (Mma(kind) == Mma::kBf16) {
        a[row][t * 2 + i / 2 * 8] = bfloat(std::uint16_t(f[l].a[i]));
        a[row][t * 2 + i / 2 * 8 + 1] = bfloat(std::uint16_t(f[l].a[i] >> 16));
      } else {
        a[row][t + i / 2 * 4] = tf32(f[l].a[i]);
      }
      d[g + i / 2 * 8][t * 2 + i % 2] = f[l].d[i];
    }
    for (int i = 0; i < 2; ++i) {
      if (Mma(kind) == Mma::kBf16) {
        b[t * 2 + i * 8][g] = bfloat(std::uint16_t(f[l].b[i]));
        b[t * 2 + i * 8 + 1][g] = bfloat(std::uint16_t(f[l].b[i] >> 16));
      } else {
        b[t + i * 4][g] = tf32(f[l].b[i]);
      }
    }
  }
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < depth; ++k) {
      for (int j = 0; j < 8; ++j) d[i][j] += a[i][k] * b[k][j];
    }
  }
  for (int l = 0; l < 32; ++l) {
    const int g = l / 4, t = l % 4;
    for (int i = 0; i < 4; ++i) f[l].d[i] = d[g + i / 2 * 8][t * 2 + i % 2];
    std::memcpy(warp.exchange[l], f[l].d, sizeof f[l].d);
  }
}

}  // namespace

void cp_async(void* shared, const void* global, int bytes, int source_bytes) {
  const void* const pc = __builtin_return_address(0);
  const RuntimePart part;
  const auto to = reinterpret_cast<std::uintptr_t>(shared);
  const auto from = reinterpret_cast<std::uintptr_t>(global);
  if (to % unsigned(bytes)) misaligned("cp.async to shared memory", shared, pc);
  if (from % unsigned(bytes)) misaligned("cp.async from global memory", global, pc);
  if (source_bytes < 0 || source_bytes > bytes) {
    report_at("cp.async", format("a source of %d bytes for a copy of %d", source_bytes, bytes), pc);
    source_bytes = std::clamp(source_bytes, 0, bytes);
  }
  if (!is_shared(shared)) report_at("cp.async", "the target is not shared memory", pc);
  if (source_bytes) check_kernel_access(from, std::size_t(source_bytes), Touch::kRead, pc);
  check_kernel_access(to, std::size_t(bytes), Touch::kCopy, pc);
  std::memset(shared, 0xff, std::size_t(bytes));  // garbage until the wait
  block.copies[running->number].push_back(
      {static_cast<char*>(shared), static_cast<const char*>(global), bytes, source_bytes, -1, pc});
}

void cp_async_commit_group() {
  const int group = block.copy_groups[running->number]++;
  for (AsyncCopy& c : block.copies[running->number]) {
    if (c.group < 0) c.group = group;
  }
}

void cp_async_wait_group(int pending) {
  const RuntimePart part;
  auto& copies = block.copies[running->number];
  const int groups = block.copy_groups[running->number];
  std::size_t done = 0;
  while (done < copies.size() && copies[done].group >= 0 && copies[done].group < groups - pending) {
    complete(copies[done++]);
  }
  copies.erase(copies.begin(), copies.begin() + std::ptrdiff_t(done));
}

void finish_copies(int thread) {
  auto& copies = block.copies[thread];
  block.copy_groups[thread] = 0;
  if (copies.empty()) return;
  report_at("cp.async", "a thread exits with a copy it did not wait for, started", copies[0].pc);
  copies.clear();
}

void ldmatrix(unsigned* registers, int matrices, bool transposed, const void* row, const char* file,
              int line) {
  const void* const pc = __builtin_return_address(0);
  const RuntimePart part;
  const int lane = running->number & 31;
  if (lane < 8 * matrices) {
    if (reinterpret_cast<std::uintptr_t>(row) % 16) misaligned("ldmatrix", row, pc);
    if (!is_shared(row)) report_at("ldmatrix", "the row is not in shared memory", pc);
    check_kernel_access(reinterpret_cast<std::uintptr_t>(row), 16, Touch::kRead, pc);
  }
  struct Rows {
    static void load(Warp& warp, unsigned lanes, int op) {
      const int count = op & 7;
      if (lanes != ~0u) return;
      std::uint16_t m[4][8][8];
      for (int i = 0; i < 8 * count; ++i) {
        const void* from;
        std::memcpy(&from, warp.exchange[i], sizeof from);
        std::memcpy(m[i / 8][i % 8], from, 16);
      }
      for (int l = 0; l < 32; ++l) {
        const int r = l / 4, c = l % 4 * 2;
        for (int i = 0; i < count; ++i) {
          const std::uint16_t low = op & 8 ? m[i][c][r] : m[i][r][c];
          const std::uint16_t high = op & 8 ? m[i][c + 1][r] : m[i][r][c + 1];
          const unsigned both = unsigned{high} << 16 | low;
          std::memcpy(warp.exchange[l] + 4 * i, &both, 4);
        }
      }
    }
  };
  const Warp& warp = meet(~0u, "ldmatrix", &row, sizeof row, Rows::load,
                          matrices | (transposed ? 8 : 0), file, line);
  std::memcpy(registers, warp.exchange[lane], sizeof(unsigned) * std::size_t(matrices));
}

void mma(Mma kind, float* d, const unsigned* a, const unsigned* b, const char* file, int line) {
  const RuntimePart part;
  Fragments f;
  std::memcpy(f.a, a, sizeof f.a);
  std::memcpy(f.b, b, sizeof f.b);
  std::memcpy(f.d, d, sizeof f.d);
  const Warp& warp = meet(~0u, "mma", &f, sizeof f, multiply, int(kind), file, line);
  std::memcpy(d, warp.exchange[running->number & 31], sizeof f.d);
}

}  // namespace simcuda

#pragma once
// The checker: a shadow cell for every few bytes of device and shared memory remembers who wrote
// and who read them last.
#include <cstddef>
#include <cstdint>

namespace simcuda {

struct Allocation;

/// One access. state: thread in the block (10 bits), flags (6), barrier epoch (22), warp epoch
/// (26).
struct Mark {
  std::uint32_t unit;  // 0: never
  std::uint32_t pc;
  std::uint64_t state;
};
struct Cell {
  Mark write, read;
};

constexpr std::uint64_t kThreadMask = 0x3ff;
constexpr std::uint64_t kAtomicFlag = 1u << 10;
constexpr std::uint64_t kWarpFlag = 1u << 11;   // several lanes of one warp have read
constexpr std::uint64_t kBlockFlag = 1u << 12;  // threads of several warps have read
constexpr std::uint64_t kGridFlag = 1u << 13;   // several blocks of the kernel have read
constexpr std::uint64_t kCopyFlag = 1u << 14;   // cp.async that was not waited for
constexpr int kBarrierShift = 16, kWarpShift = 38;
constexpr std::uint64_t kBarrierMask = (std::uint64_t{1} << 22) - 1;

enum class Touch : std::uint8_t { kRead, kWrite, kAtomic, kCopy };

/// Set while the code of a kernel runs on this thread, and only then: host code that shares an
/// instrumented inline function comes here, too.
extern __thread bool in_kernel __attribute__((tls_model("initial-exec")));
extern bool checking;
/// Thread and epochs of the running thread, as in Mark::state.
extern std::uint64_t running_state;

void check_kernel_access(std::uintptr_t address, std::size_t bytes, Touch touch, const void* pc);
/// An access of the operation that runs now, other than by a kernel.
void check_bulk_access(const void* p, std::size_t bytes, bool write, bool initialised = true);
void forget_cells(Allocation& a);
/// Whether all accesses to it come before the operation that runs now; reports what does not.
void check_release(Allocation& a, const char* what);

}  // namespace simcuda

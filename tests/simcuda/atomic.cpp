// Atomic operations and fences.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "block.h"
#include "execution.h"
#include "fences.h"
#include "report.h"

namespace simcuda {
namespace {

struct Release {
  std::uint32_t unit;
  std::uint32_t all_fenced;  // every thread of the block fenced in this barrier epoch
  std::uint64_t state;       // of the releasing thread at its fence
};
using Releases = std::vector<Release>;  // the units ascend: blocks run one after the other
struct Acquired {
  const Releases* from;
  std::size_t count;
};

std::map<std::uintptr_t, Releases> releases;
std::vector<Acquired> pending[kMaxThreads], acquired;
std::uint64_t fence_state[kMaxThreads];
std::uint32_t fence_unit[kMaxThreads];
std::uint32_t fence_epoch, fence_count, all_fenced;

std::uint32_t barrier_epoch(std::uint64_t state) {
  return std::uint32_t(state >> kBarrierShift & kBarrierMask);
}

unsigned long long apply(AtomicOp op, unsigned long long old, unsigned long long x,
                         unsigned long long compare) {
  const auto a = static_cast<long long>(old), b = static_cast<long long>(x);
  switch (op) {
    case AtomicOp::kAdd: return old + x;
    case AtomicOp::kSub: return old - x;
    case AtomicOp::kMin: return std::min(old, x);
    case AtomicOp::kMax: return std::max(old, x);
    case AtomicOp::kMinSigned: return a < b ? old : x;
    case AtomicOp::kMaxSigned: return a > b ? old : x;
    case AtomicOp::kExchange: return x;
    case AtomicOp::kCompare: return old == compare ? x : old;
    case AtomicOp::kAnd: return old & x;
    case AtomicOp::kOr: return old | x;
    case AtomicOp::kXor: return old ^ x;
    case AtomicOp::kIncrement: return old >= x ? 0 : old + 1;
    case AtomicOp::kDecrement: return old == 0 || old > x ? x : old - 1;
  }
  return old;
}

void synchronize(std::uintptr_t address) {
  const unsigned me = running->number;
  Releases& r = releases[address];
  if (!r.empty()) pending[me].push_back({&r, r.size()});
  const bool fenced = fence_unit[me] == now.unit;
  if (fenced || all_fenced) {
    r.push_back({now.unit, all_fenced, fenced ? fence_state[me] : 0});
  }
}

}  // namespace

void begin_fences() {
  releases.clear();
  acquired.clear();
  for (auto& p : pending) p.clear();
}
void begin_block_fences() {
  fence_epoch = fence_count = all_fenced = 0;
  if (releases.empty()) return;
  acquired.clear();
  for (int i = 0; i < block.threads; ++i) pending[i].clear();
}

bool covered_by_fences(const Mark& mark) {
  const RuntimePart part;
  for (const Acquired& a : acquired) {
    const auto end = a.from->begin() + std::ptrdiff_t(a.count);
    auto it = std::lower_bound(a.from->begin(), end, mark.unit,
                               [](const Release& r, std::uint32_t unit) { return r.unit < unit; });
    for (; it != end && it->unit == mark.unit; ++it) {
      const std::uint32_t epoch = barrier_epoch(mark.state);
      if (epoch <= it->all_fenced || epoch < barrier_epoch(it->state)) return true;
      if (!it->state) continue;
      const std::uint64_t differs = (mark.state ^ it->state) & kThreadMask;
      if (differs == 0) return true;
      if (!(differs & ~31u) && mark.state >> kWarpShift < it->state >> kWarpShift) return true;
    }
  }
  return false;
}

void fence() {
  const RuntimePart part;
  const unsigned me = running->number;
  fence_state[me] = running_state;
  fence_unit[me] = now.unit;
  const std::uint32_t epoch = barrier_epoch(running_state);
  if (epoch != fence_epoch) {
    fence_epoch = epoch;
    fence_count = 0;
  }
  if (++fence_count == unsigned(block.threads)) all_fenced = epoch;
  acquired.insert(acquired.end(), pending[me].begin(), pending[me].end());
  pending[me].clear();
}

unsigned long long atomic(AtomicOp op, void* address, int bytes, unsigned long long operand,
                          unsigned long long compare) {
  const void* const pc = __builtin_return_address(0);
  const RuntimePart part;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (at % unsigned(bytes)) {
    report_at("misaligned", format("%d-byte atomic operation on %p", bytes, address), pc);
    abort_kernel(cudaErrorMisalignedAddress);
  }
  check_kernel_access(at, std::size_t(bytes), Touch::kAtomic, pc);
  if (!is_shared(address)) synchronize(at);
  unsigned long long old = 0;
  std::memcpy(&old, address, std::size_t(bytes));
  if (bytes == 4 && (op == AtomicOp::kMinSigned || op == AtomicOp::kMaxSigned)) {
    old = static_cast<unsigned long long>(static_cast<long long>(static_cast<int>(old)));
  }
  if (bytes < 8 && op == AtomicOp::kCompare) compare &= (1ull << (8 * bytes)) - 1;
  if (bytes == 4 && (op == AtomicOp::kIncrement || op == AtomicOp::kDecrement)) {
    operand &= 0xffffffffull;
  }
  const unsigned long long value = apply(op, old, operand, compare);
  std::memcpy(address, &value, std::size_t(bytes));
  return old;
}

}  // namespace simcuda

#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

#include "check.h"
#include "execution.h"
#include "report.h"

namespace simcuda {
namespace {

std::size_t next_free[kRegions];  // offset in the region
thread_local int open_depth = 0;

// Protection keys close memory for each thread separately and cost a few instructions; where the
// processor or the kernel has none, mprotect() does it for the whole process.
int protection_key() {
  static const int key = [] {
    const int k = std::getenv("SIM_NO_PKEYS") ? -1 : pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (k >= 0 && pkey_mprotect(arena, kMaxDevices * kRegionBytes, PROT_READ | PROT_WRITE, k)) {
      pkey_free(k);
      return -1;
    }
    if (k < 0) mprotect(arena, kMaxDevices * kRegionBytes, PROT_NONE);
    return k;
  }();
  return key;
}
void set_open(bool open) {
  const int key = protection_key();
  if (key >= 0) {
    pkey_set(key, open ? 0 : PKEY_DISABLE_ACCESS);
    return;
  }
  for (int d = 0; d < kMaxDevices; ++d) {
    const std::size_t bytes = (next_free[d] + 4095) / 4096 * 4096;
    if (bytes) mprotect(arena + d * kRegionBytes, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

std::deque<Allocation>& allocations() {
  static std::deque<Allocation>& a = *new std::deque<Allocation>;
  return a;
}
std::map<std::uintptr_t, Allocation*>& registered() {  // by end
  static auto& r = *new std::map<std::uintptr_t, Allocation*>;
  return r;
}

}  // namespace

char* const arena = static_cast<char*>(reserve(kRegions * kRegionBytes));
Allocation** const allocation_table =
    static_cast<Allocation**>(reserve(kRegions * kRegionBytes / kGranularity * sizeof(void*)));

OpenMemory::OpenMemory() {
  if (open_depth++ == 0) set_open(true);
}
OpenMemory::~OpenMemory() {
  if (--open_depth == 0) set_open(false);
}
ClosedMemory::ClosedMemory() : depth_(open_depth) {
  if (depth_) set_open(false);
  open_depth = 0;
}
ClosedMemory::~ClosedMemory() {
  open_depth = depth_;
  if (depth_) set_open(true);
}

std::size_t rounded(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + kGranularity - 1) / kGranularity * kGranularity;
}

Usage& usage(int device) {
  static Usage u[kRegions];
  static const bool filled = [] {
    std::size_t megabytes = 1024;
    if (const char* text = std::getenv("SIM_DEVICE_MB"))
      megabytes = std::strtoull(text, nullptr, 10);
    for (Usage& x : u) x = {megabytes << 20, 0, 0};
    u[kPinned].capacity = kRegionBytes;
    return true;
  }();
  (void)filled;
  return u[device];
}

Allocation* allocate(int region, std::size_t bytes, std::uint32_t born) {
  const std::size_t size = rounded(bytes);
  Usage& u = usage(region);
  if (size < bytes || size > u.capacity || u.used > u.capacity - size) return nullptr;
  // The red zone behind belongs to the allocation in the table, so that a step too far is named.
  const std::size_t begin = next_free[region] ? next_free[region] : kGranularity;
  if (begin + size + kGranularity > kRegionBytes) fatal("the address space of a device is used up");
  protection_key();
  const OpenMemory open;
  next_free[region] = begin + size + kGranularity;
  if (protection_key() < 0) set_open(true);
  u.used += size;
  u.peak = std::max(u.peak, u.used);
  char* const base = arena + std::size_t(region) * kRegionBytes + begin;
  std::deque<Allocation>& all = allocations();
  all.push_back({reinterpret_cast<std::uintptr_t>(base), bytes, region,
                 std::uint32_t(all.size() + 1), true, false, born, 0, 0, 4, nullptr, nullptr});
  Allocation* const a = &all.back();
  const std::size_t first = std::size_t(base - arena) / kGranularity;
  std::fill_n(allocation_table + first, size / kGranularity + 1, a);
  std::memset(base, 0xff, bytes);
  return a;
}

void give_back(Allocation& a) { usage(a.region).used -= rounded(a.bytes); }

void release(Allocation& a, std::uint32_t operation) {
  a.live = false;
  a.freed = operation;
  forget_cells(a);
  if (a.registered) return;
  const OpenMemory open;
  const std::uintptr_t begin = (a.base + 4095) / 4096 * 4096;
  const std::uintptr_t end = (a.base + rounded(a.bytes)) / 4096 * 4096;
  if (end > begin && end - begin >= (std::size_t{64} << 10)) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  } else {
    std::memset(reinterpret_cast<void*>(a.base), 0xff, a.bytes);
  }
}

int device_of_address(const void* p) {
  const auto a = reinterpret_cast<std::uintptr_t>(p);
  if (!in_arena(a)) return -1;
  const int region = region_of(a);
  return region == kPinned ? -1 : region;
}

Allocation* pinned_at(const void* p) {
  const auto a = reinterpret_cast<std::uintptr_t>(p);
  if (in_arena(a)) return region_of(a) == kPinned ? allocation_at(a) : nullptr;
  const auto it = registered().upper_bound(a);
  return it != registered().end() && it->second->base <= a ? it->second : nullptr;
}

Allocation* register_host(void* p, std::size_t bytes) {
  const auto base = reinterpret_cast<std::uintptr_t>(p);
  const auto it = registered().upper_bound(base);
  if (!p || !bytes || (it != registered().end() && it->second->base < base + bytes)) return nullptr;
  std::deque<Allocation>& all = allocations();
  all.push_back({base, bytes, kPinned, std::uint32_t(all.size() + 1), true, true,
                 host_operation("cudaHostRegister", -1), 0, 0, 4, nullptr, nullptr});
  return registered()[base + bytes] = &all.back();
}
bool unregister_host(void* p) {
  Allocation* const a = pinned_at(p);
  if (!a || !a->registered || a->base != reinterpret_cast<std::uintptr_t>(p)) return false;
  registered().erase(a->base + a->bytes);
  release(*a, 0);
  return true;
}

std::string describe_address(std::uintptr_t p) {
  Allocation* a = in_arena(p) ? allocation_at(p) : pinned_at(reinterpret_cast<void*>(p));
  if (!a) {
    if (!in_arena(p)) return format("host memory at %p", reinterpret_cast<void*>(p));
    const int region = region_of(p);
    return region == kPinned ? "pinned memory that was never allocated"
                             : format("device %d, memory that was never allocated", region);
  }
  const std::string where =
      a->region == kPinned ? "pinned host memory" : format("device %d", a->region);
  return where + format(", %zu-byte allocation %u%s, offset %zu%s", a->bytes, a->number,
                        a->live ? "" : " (freed)", std::size_t(p - a->base),
                        p >= a->base + a->bytes ? ", behind its end" : "");
}

}  // namespace simcuda

#pragma once
// Memory of the simulated devices. Each device has a stretch of reserved address space from which
// addresses are given out once and never again, with red zones between; one more stretch holds
// pinned memory of the host. Threads of the host fault when they touch a device's memory.
#include <cstddef>
#include <cstdint>
#include <string>

#include <driver_types.h>

namespace simcuda {

constexpr int kMaxDevices = 8;
constexpr int kPinned = kMaxDevices;  // the region of pinned host memory
constexpr int kRegions = kMaxDevices + 1;
constexpr std::size_t kRegionBytes = std::size_t{1} << 38;
constexpr std::size_t kGranularity = 512;

struct Cell;     // check.h
struct Readers;  // readers.h

struct Allocation {
  std::uintptr_t base;
  std::size_t bytes;
  int region;
  std::uint32_t number;
  bool live;
  bool registered;     // memory of the program that was pinned by cudaHostRegister
  std::uint32_t born;  // operations
  std::uint32_t freed;
  std::uint32_t checked;  // the last operation that was seen to come after `born`
  unsigned shift;         // a cell of shadow memory stands for 1 << shift bytes
  Cell* cells;
  cudaMemPool_t pool;  // nullptr: cudaMalloc
  Readers* readers = nullptr;
};

extern char* const arena;
extern Allocation** const allocation_table;  // one entry for kGranularity bytes of the arena

inline bool in_arena(std::uintptr_t a) {
  return a - reinterpret_cast<std::uintptr_t>(arena) < kRegions * kRegionBytes;
}
inline Allocation* allocation_at(std::uintptr_t a) {
  return allocation_table[(a - reinterpret_cast<std::uintptr_t>(arena)) / kGranularity];
}
inline int region_of(std::uintptr_t a) {
  return int((a - reinterpret_cast<std::uintptr_t>(arena)) / kRegionBytes);
}
/// Device of an address, or -1.
int device_of_address(const void* p);
/// Pinned allocation or registered range around a host address, or nullptr.
Allocation* pinned_at(const void* p);

/// nullptr when the capacity does not allow it. The memory is filled with 0xff bytes.
Allocation* allocate(int region, std::size_t bytes, std::uint32_t born);
/// Counts the bytes as free; release() is when the memory goes.
void give_back(Allocation& a);
void release(Allocation& a, std::uint32_t operation);
Allocation* register_host(void* p, std::size_t bytes);
bool unregister_host(void* p);

struct Usage {
  std::size_t capacity, used, peak;
};
Usage& usage(int device);
std::size_t rounded(std::size_t bytes);

/// While one exists, this thread can touch device memory.
class OpenMemory {
 public:
  OpenMemory();
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;
};
/// Closes it in between (a host function runs).
class ClosedMemory {
 public:
  ClosedMemory();
  ~ClosedMemory();
  ClosedMemory(const ClosedMemory&) = delete;
  ClosedMemory& operator=(const ClosedMemory&) = delete;

 private:
  int depth_;
};

/// "device 0, 4096-byte allocation 17 (freed), offset 12"
std::string describe_address(std::uintptr_t a);
/// Installs the handler that names the allocation when host code touches device memory.
void catch_faults();

}  // namespace simcuda

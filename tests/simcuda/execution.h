#pragma once
// Who did what, and what is ordered. Every operation on a stream and every call of the host that
// matters has a number; a vector clock says which earlier ones it comes after.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace simcuda {

/// For each timeline (a stream, a branch of a graph, the host) the last step that is known.
using Clock = std::vector<std::uint32_t>;
void join(Clock& into, const Clock& other);

struct Operation {
  std::uint32_t timeline;
  std::uint32_t step;
  std::uint32_t name;
  int device;
  const void* function;  // of a kernel
  const void* caller;    // who asked for it
};
// Plain arrays in reserved address space: the checker reads them at every access.
extern Operation* operations;
extern std::uint32_t* unit_operation;

std::uint32_t new_timeline();
/// Ticks `clock` on the timeline and remembers the operation. Number 0 is never given.
std::uint32_t new_operation(std::uint32_t timeline, Clock& clock, const std::string& name,
                            int device, const void* caller, const void* function = nullptr);
/// A unit is what orders its own accesses by itself: a block of a kernel, a copy, a library call.
std::uint32_t new_unit(std::uint32_t operation);
std::string operation_name(std::uint32_t operation);

/// All host threads share one timeline: what orders them (mutexes, joins) is invisible here, and
/// the thread sanitizer's business. A call of any of them comes after all earlier calls.
struct Host {
  std::uint32_t timeline;
  Clock clock;
};
Host& host();
std::uint32_t host_operation(const char* name, int device);

/// What runs now. One thread at a time runs operations, under the runtime's lock.
struct Execution {
  std::uint32_t operation = 0;
  std::uint32_t unit = 0;
  const Clock* clock = nullptr;
  bool is_copy = false;  // may go between devices without peer access
};
extern Execution now;
inline bool comes_before_now(std::uint32_t operation) {
  const Operation& o = operations[operation];
  return o.timeline < now.clock->size() && (*now.clock)[o.timeline] >= o.step;
}

/// Seeded random numbers of the scheduler.
std::uint32_t random_number();
void seed_random(std::uint64_t seed);

/// Reserved address space that reads as zero.
void* reserve(std::size_t bytes, bool accessible = true);

}  // namespace simcuda

#pragma once
// What a kernel sees in the simulated build. NVIDIA's own headers give the types; the device's
// built-in variables, barriers, shared memory and the launch are here, the rest in the four headers
// included below. Only core/cuda/device.cuh includes this.
#include <cuda_runtime.h>
#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// Only the macros below know where a shared array begins and ends.
#undef __shared__
#define __shared__ static_assert(false, "use ACCRUE_SHARED or ACCRUE_SHARED_DYNAMIC");
#undef __launch_bounds__
#define __launch_bounds__(...)

#define SIMCUDA_INLINE inline __attribute__((always_inline))
/// Not followed by the checker: for code that stands for hardware.
#define SIMCUDA_UNCHECKED __attribute__((no_sanitize("thread")))
/// The place of a call, handed on as two arguments.
#define SIMCUDA_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace simcuda {

/// The built-in variables of the thread that runs now.
struct Indices {
  uint3 thread;
  uint3 block;
  dim3 block_dim;
  dim3 grid_dim;
};
extern Indices indices;

// They are constant for a thread, and the checker must not see the read: hence the assembly.
SIMCUDA_INLINE unsigned read_index(const unsigned& value) {
#if defined(__x86_64__)
  unsigned result;
  asm("movl %1, %0" : "=r"(result) : "m"(value));
  return result;
#else
  return value;
#endif
}
SIMCUDA_INLINE uint3 read_indices(const uint3& v) {
  return {read_index(v.x), read_index(v.y), read_index(v.z)};
}
SIMCUDA_INLINE dim3 read_indices(const dim3& v) {
  return {read_index(v.x), read_index(v.y), read_index(v.z)};
}

void* shared_variable(const void* key, std::size_t bytes, const char* name);
void* shared_dynamic();

void barrier(const char* file, int line);
enum class Vote { kOr, kAnd, kCount };
int barrier_vote(Vote vote, int predicate, const char* file, int line);
void fence();
void wait_for_earlier_kernels();

bool is_global(const void* p);
bool is_shared(const void* p);
void assumption_failed(const char* text, const char* file, int line);
[[noreturn]] void trap();
long long clock_value();

}  // namespace simcuda

#define threadIdx (::simcuda::read_indices(::simcuda::indices.thread))
#define blockIdx (::simcuda::read_indices(::simcuda::indices.block))
#define blockDim (::simcuda::read_indices(::simcuda::indices.block_dim))
#define gridDim (::simcuda::read_indices(::simcuda::indices.grid_dim))
static constexpr int warpSize = 32;

/// ACCRUE_SHARED(float, tile, [32][33]); ACCRUE_SHARED(int, flag); bounds are checked exactly.
#define ACCRUE_SHARED(T, name, ...)                \
  static const char name##_shared_key_ = 0;        \
  using name##_shared_type_ = T __VA_ARGS__;       \
  auto& name = *static_cast<name##_shared_type_*>( \
      ::simcuda::shared_variable(&name##_shared_key_, sizeof(name##_shared_type_), #name))
/// ACCRUE_SHARED_DYNAMIC(float, buffer); a T* to the bytes that the launch asked for.
#define ACCRUE_SHARED_DYNAMIC(T, name) T* const name = static_cast<T*>(::simcuda::shared_dynamic())

SIMCUDA_INLINE void __syncthreads(SIMCUDA_PLACE) { ::simcuda::barrier(file, line); }
SIMCUDA_INLINE int __syncthreads_or(int predicate, SIMCUDA_PLACE) {
  return ::simcuda::barrier_vote(::simcuda::Vote::kOr, predicate, file, line);
}
SIMCUDA_INLINE int __syncthreads_and(int predicate, SIMCUDA_PLACE) {
  return ::simcuda::barrier_vote(::simcuda::Vote::kAnd, predicate, file, line);
}
SIMCUDA_INLINE int __syncthreads_count(int predicate, SIMCUDA_PLACE) {
  return ::simcuda::barrier_vote(::simcuda::Vote::kCount, predicate, file, line);
}
SIMCUDA_INLINE void __threadfence() { ::simcuda::fence(); }
SIMCUDA_INLINE void __threadfence_system() { ::simcuda::fence(); }
SIMCUDA_INLINE void __threadfence_block() {}

SIMCUDA_INLINE unsigned __isGlobal(const void* p) { return ::simcuda::is_global(p); }
SIMCUDA_INLINE unsigned __isShared(const void* p) { return ::simcuda::is_shared(p); }
#define __builtin_assume(condition) \
  ((condition) ? (void)0 : ::simcuda::assumption_failed(#condition, __FILE__, __LINE__))
[[noreturn]] SIMCUDA_INLINE void __trap() { ::simcuda::trap(); }
SIMCUDA_INLINE long long clock64() { return ::simcuda::clock_value(); }
SIMCUDA_INLINE void __nanosleep(unsigned) {}

#include <simcuda/warp.h>
#include <simcuda/atomics.h>
#include <simcuda/intrinsics.h>
#include <simcuda/launch.h>

// Kernels are compiled with -fsanitize=thread and linked against these functions: the compiler
// itself calls the checker at every load and store. Host code in the same files comes here, too,
// and leaves at once.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "block.h"
#include "report.h"

namespace simcuda {
namespace {

__attribute__((cold, noinline)) void misaligned(std::uintptr_t a, std::size_t bytes, bool write,
                                                const void* pc) {
  const RuntimePart part;
  report_at(
      "misaligned",
      format("%zu-byte %s at %p", bytes, write ? "write" : "read", reinterpret_cast<void*>(a)), pc);
  abort_kernel(cudaErrorMisalignedAddress);
}

inline void hook(void* p, std::size_t bytes, bool write, bool aligned, const void* pc) {
  if (!in_kernel) return;
  const auto a = reinterpret_cast<std::uintptr_t>(p);
  if (a - reinterpret_cast<std::uintptr_t>(stacks) < kStacksBytes) return;
  if (aligned && (a & (bytes - 1))) misaligned(a, bytes, write, pc);
  check_kernel_access(a, bytes, write ? Touch::kWrite : Touch::kRead, pc);
}

}  // namespace
}  // namespace simcuda

extern "C" {

#define SIMCUDA_HOOKS(n)                                                                          \
  void __tsan_read##n(void* p) { simcuda::hook(p, n, false, true, __builtin_return_address(0)); } \
  void __tsan_write##n(void* p) { simcuda::hook(p, n, true, true, __builtin_return_address(0)); } \
  void __tsan_unaligned_read##n(void* p) {                                                        \
    simcuda::hook(p, n, false, false, __builtin_return_address(0));                               \
  }                                                                                               \
  void __tsan_unaligned_write##n(void* p) {                                                       \
    simcuda::hook(p, n, true, false, __builtin_return_address(0));                                \
  }                                                                                               \
  void __tsan_volatile_read##n(void* p) {                                                         \
    simcuda::hook(p, n, false, true, __builtin_return_address(0));                                \
  }                                                                                               \
  void __tsan_volatile_write##n(void* p) {                                                        \
    simcuda::hook(p, n, true, true, __builtin_return_address(0));                                 \
  }
SIMCUDA_HOOKS(1)
SIMCUDA_HOOKS(2)
SIMCUDA_HOOKS(4)
SIMCUDA_HOOKS(8)
SIMCUDA_HOOKS(16)

void __tsan_read_range(void* p, std::size_t n) {
  if (n) simcuda::hook(p, n, false, false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, std::size_t n) {
  if (n) simcuda::hook(p, n, true, false, __builtin_return_address(0));
}
// What memcpy() and its kin are called in kernels (memory_functions.h).
void* simcuda_memcpy(void* to, const void* from, std::size_t n) {
  if (n) simcuda::hook(const_cast<void*>(from), n, false, false, __builtin_return_address(0));
  if (n) simcuda::hook(to, n, true, false, __builtin_return_address(0));
  return std::memcpy(to, from, n);
}
void* simcuda_memmove(void* to, const void* from, std::size_t n) {
  if (n) simcuda::hook(const_cast<void*>(from), n, false, false, __builtin_return_address(0));
  if (n) simcuda::hook(to, n, true, false, __builtin_return_address(0));
  return std::memmove(to, from, n);
}
void* simcuda_memset(void* to, int value, std::size_t n) {
  if (n) simcuda::hook(to, n, true, false, __builtin_return_address(0));
  return std::memset(to, value, n);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// std::atomic and reference counts in the host code of kernel files.
#define SIMCUDA_HOST_ATOMICS(bits, T)                                                       \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {                                  \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                            \
  }                                                                                         \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) {                               \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                               \
  }                                                                                         \
  T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) {                               \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                     \
  }                                                                                         \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T v, int) {                              \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                      \
  }                                                                                         \
  T __tsan_atomic##bits##_fetch_sub(volatile T* p, T v, int) {                              \
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                      \
  }                                                                                         \
  T __tsan_atomic##bits##_fetch_and(volatile T* p, T v, int) {                              \
    return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST);                                      \
  }                                                                                         \
  T __tsan_atomic##bits##_fetch_or(volatile T* p, T v, int) {                               \
    return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);                                       \
  }                                                                                         \
  T __tsan_atomic##bits##_fetch_xor(volatile T* p, T v, int) {                              \
    return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST);                                      \
  }                                                                                         \
  T __tsan_atomic##bits##_fetch_nand(volatile T* p, T v, int) {                             \
    return __atomic_fetch_nand(p, v, __ATOMIC_SEQ_CST);                                     \
  }                                                                                         \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* c, T v, int, int) {   \
    return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                         \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* c, T v, int, int) {     \
    return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }
SIMCUDA_HOST_ATOMICS(8, unsigned char)
SIMCUDA_HOST_ATOMICS(16, unsigned short)
SIMCUDA_HOST_ATOMICS(32, unsigned)
SIMCUDA_HOST_ATOMICS(64, unsigned long)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

}  // extern "C"

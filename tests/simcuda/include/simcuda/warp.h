#pragma once
// Warp operations: all lanes named in the mask meet, the last one to come computes what each gets.
// Source: CUDA C++ programming guide, "Warp shuffle / vote / match / reduce functions".
#include <cstring>
#include <type_traits>

namespace simcuda {

enum class WarpOp : unsigned char {
  kSync,
  kShuffle,
  kBallot,
  kAny,
  kAll,
  kAdd,
  kMin,
  kMax,
  kAnd,
  kOr,
  kXor,
  kMatchAny,
  kMatchAll,
};
/// `lane` is the source of a shuffle. Returns what this lane gets.
unsigned long long warp_exchange(WarpOp op, const char* name, unsigned mask,
                                 unsigned long long value, int lane, const char* file, int line);
int shuffle_source(const char* name, int kind, int operand, int width);
unsigned active_mask();

template <class T>
SIMCUDA_INLINE T shuffle(const char* name, int kind, unsigned mask, T value, int operand, int width,
                         const char* file, int line) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8 && sizeof(T) >= 2);
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = warp_exchange(WarpOp::kShuffle, name, mask, bits,
                       shuffle_source(name, kind, operand, width), file, line);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
SIMCUDA_INLINE int reduce_signed(WarpOp op, const char* name, unsigned mask, int value,
                                 const char* file, int line) {
  const long long wide = value;
  return static_cast<int>(
      warp_exchange(op, name, mask, static_cast<unsigned long long>(wide), 0, file, line));
}
SIMCUDA_INLINE unsigned reduce_unsigned(WarpOp op, const char* name, unsigned mask, unsigned value,
                                        const char* file, int line) {
  return static_cast<unsigned>(warp_exchange(op, name, mask, value, 0, file, line));
}
template <class T>
SIMCUDA_INLINE unsigned match(WarpOp op, const char* name, unsigned mask, T value, const char* file,
                              int line) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  return static_cast<unsigned>(warp_exchange(op, name, mask, bits, 0, file, line));
}

}  // namespace simcuda

SIMCUDA_INLINE void __syncwarp(unsigned mask = 0xffffffffu, SIMCUDA_PLACE) {
  ::simcuda::warp_exchange(::simcuda::WarpOp::kSync, "__syncwarp", mask, 0, 0, file, line);
}
template <class T>
SIMCUDA_INLINE T __shfl_sync(unsigned mask, T value, int lane, int width = 32, SIMCUDA_PLACE) {
  return ::simcuda::shuffle("__shfl_sync", 0, mask, value, lane, width, file, line);
}
template <class T>
SIMCUDA_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                SIMCUDA_PLACE) {
  return ::simcuda::shuffle("__shfl_up_sync", 1, mask, value, static_cast<int>(delta), width, file,
                            line);
}
template <class T>
SIMCUDA_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                  SIMCUDA_PLACE) {
  return ::simcuda::shuffle("__shfl_down_sync", 2, mask, value, static_cast<int>(delta), width,
                            file, line);
}
template <class T>
SIMCUDA_INLINE T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                                 SIMCUDA_PLACE) {
  return ::simcuda::shuffle("__shfl_xor_sync", 3, mask, value, lane_mask, width, file, line);
}

SIMCUDA_INLINE unsigned __ballot_sync(unsigned mask, int predicate, SIMCUDA_PLACE) {
  return static_cast<unsigned>(::simcuda::warp_exchange(::simcuda::WarpOp::kBallot, "__ballot_sync",
                                                        mask, predicate != 0, 0, file, line));
}
SIMCUDA_INLINE int __any_sync(unsigned mask, int predicate, SIMCUDA_PLACE) {
  return static_cast<int>(::simcuda::warp_exchange(::simcuda::WarpOp::kAny, "__any_sync", mask,
                                                   predicate != 0, 0, file, line));
}
SIMCUDA_INLINE int __all_sync(unsigned mask, int predicate, SIMCUDA_PLACE) {
  return static_cast<int>(::simcuda::warp_exchange(::simcuda::WarpOp::kAll, "__all_sync", mask,
                                                   predicate != 0, 0, file, line));
}
/// Some lanes that happen to be together: here all that have not exited. Never build a mask on it.
SIMCUDA_INLINE unsigned __activemask() { return ::simcuda::active_mask(); }

template <class T>
SIMCUDA_INLINE unsigned __match_any_sync(unsigned mask, T value, SIMCUDA_PLACE) {
  return ::simcuda::match(::simcuda::WarpOp::kMatchAny, "__match_any_sync", mask, value, file,
                          line);
}
template <class T>
SIMCUDA_INLINE unsigned __match_all_sync(unsigned mask, T value, int* same, SIMCUDA_PLACE) {
  const unsigned result =
      ::simcuda::match(::simcuda::WarpOp::kMatchAll, "__match_all_sync", mask, value, file, line);
  *same = result != 0;
  return result;
}

#define SIMCUDA_REDUCE(name, op)                                                              \
  SIMCUDA_INLINE unsigned name(unsigned mask, unsigned value, SIMCUDA_PLACE) {                \
    return ::simcuda::reduce_unsigned(::simcuda::WarpOp::op, #name, mask, value, file, line); \
  }
#define SIMCUDA_REDUCE_SIGNED(name, op)                                                     \
  SIMCUDA_INLINE int name(unsigned mask, int value, SIMCUDA_PLACE) {                        \
    return ::simcuda::reduce_signed(::simcuda::WarpOp::op, #name, mask, value, file, line); \
  }
SIMCUDA_REDUCE(__reduce_add_sync, kAdd)
SIMCUDA_REDUCE(__reduce_min_sync, kMin)
SIMCUDA_REDUCE(__reduce_max_sync, kMax)
SIMCUDA_REDUCE(__reduce_and_sync, kAnd)
SIMCUDA_REDUCE(__reduce_or_sync, kOr)
SIMCUDA_REDUCE(__reduce_xor_sync, kXor)
SIMCUDA_REDUCE_SIGNED(__reduce_add_sync, kAdd)
SIMCUDA_REDUCE_SIGNED(__reduce_min_sync, kMin)
SIMCUDA_REDUCE_SIGNED(__reduce_max_sync, kMax)
#undef SIMCUDA_REDUCE
#undef SIMCUDA_REDUCE_SIGNED

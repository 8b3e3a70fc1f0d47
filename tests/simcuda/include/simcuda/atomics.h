#pragma once
// Atomic operations, for exactly the types that CUDA has, without floating point: sums of floats by
// atomics depend on the order of the blocks, and this project has none.

namespace simcuda {

enum class AtomicOp : unsigned char {
  kAdd,
  kSub,
  kMin,
  kMax,
  kMinSigned,
  kMaxSigned,
  kExchange,
  kCompare,
  kAnd,
  kOr,
  kXor,
  kIncrement,
  kDecrement,
};
/// Works on the low `bytes` bytes; signed values come sign-extended. Returns the old value.
unsigned long long atomic(AtomicOp op, void* address, int bytes, unsigned long long operand,
                          unsigned long long compare);

template <class T>
SIMCUDA_INLINE T atomic_as(AtomicOp op, T* address, T operand, T compare = T{}) {
  return static_cast<T>(atomic(op, address, sizeof(T), static_cast<unsigned long long>(operand),
                               static_cast<unsigned long long>(compare)));
}

}  // namespace simcuda

#define SIMCUDA_ATOMIC(name, op, T)                                                   \
  SIMCUDA_INLINE T name(T* address, T value) {                                        \
    return ::simcuda::atomic_as(::simcuda::AtomicOp::op, address, value);             \
  }                                                                                   \
  SIMCUDA_INLINE T name##_block(T* address, T value) { return name(address, value); } \
  SIMCUDA_INLINE T name##_system(T* address, T value) { return name(address, value); }
SIMCUDA_ATOMIC(atomicAdd, kAdd, int)
SIMCUDA_ATOMIC(atomicAdd, kAdd, unsigned)
SIMCUDA_ATOMIC(atomicAdd, kAdd, unsigned long long)
SIMCUDA_ATOMIC(atomicSub, kSub, int)
SIMCUDA_ATOMIC(atomicSub, kSub, unsigned)
SIMCUDA_ATOMIC(atomicMin, kMinSigned, int)
SIMCUDA_ATOMIC(atomicMin, kMin, unsigned)
SIMCUDA_ATOMIC(atomicMin, kMinSigned, long long)
SIMCUDA_ATOMIC(atomicMin, kMin, unsigned long long)
SIMCUDA_ATOMIC(atomicMax, kMaxSigned, int)
SIMCUDA_ATOMIC(atomicMax, kMax, unsigned)
SIMCUDA_ATOMIC(atomicMax, kMaxSigned, long long)
SIMCUDA_ATOMIC(atomicMax, kMax, unsigned long long)
SIMCUDA_ATOMIC(atomicExch, kExchange, int)
SIMCUDA_ATOMIC(atomicExch, kExchange, unsigned)
SIMCUDA_ATOMIC(atomicExch, kExchange, unsigned long long)
SIMCUDA_ATOMIC(atomicAnd, kAnd, int)
SIMCUDA_ATOMIC(atomicAnd, kAnd, unsigned)
SIMCUDA_ATOMIC(atomicAnd, kAnd, unsigned long long)
SIMCUDA_ATOMIC(atomicOr, kOr, int)
SIMCUDA_ATOMIC(atomicOr, kOr, unsigned)
SIMCUDA_ATOMIC(atomicOr, kOr, unsigned long long)
SIMCUDA_ATOMIC(atomicXor, kXor, int)
SIMCUDA_ATOMIC(atomicXor, kXor, unsigned)
SIMCUDA_ATOMIC(atomicXor, kXor, unsigned long long)
SIMCUDA_ATOMIC(atomicInc, kIncrement, unsigned)
SIMCUDA_ATOMIC(atomicDec, kDecrement, unsigned)
#undef SIMCUDA_ATOMIC

#define SIMCUDA_COMPARE(T)                                                               \
  SIMCUDA_INLINE T atomicCAS(T* address, T compare, T value) {                           \
    return ::simcuda::atomic_as(::simcuda::AtomicOp::kCompare, address, value, compare); \
  }
SIMCUDA_COMPARE(int)
SIMCUDA_COMPARE(unsigned)
SIMCUDA_COMPARE(unsigned long long)
SIMCUDA_COMPARE(unsigned short)
#undef SIMCUDA_COMPARE

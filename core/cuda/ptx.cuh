#pragma once
// The one place for instructions that CUDA C++ has no function for (PTX ISA: cp.async, ldmatrix,
// mma, ex2). On the simulated device the same names are emulated, see tests/simcuda.
// All but the conversions are executed by whole warps; sm_80 or later.
#include <accrue/core/cuda/device.cuh>

#if ACCRUE_CUDA_SIM
  #include <cfloat>
  #include <cmath>
  #include <simcuda/ptx.h>
#endif

namespace accrue::cuda {

#if ACCRUE_CUDA_SIM
using simcuda::ptx::cp_async16;
using simcuda::ptx::cp_async16_zfill;
using simcuda::ptx::cp_async_commit;
using simcuda::ptx::cp_async_wait;
using simcuda::ptx::ldmatrix_x4;
using simcuda::ptx::ldmatrix_x4_trans;
using simcuda::ptx::mma_bf16_16816;
inline float exp2_approx(float x) {
  const float y = std::exp2(x);
  return y < FLT_MIN ? 0.0f : y;
}
#else
namespace detail {
__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
}  // namespace detail

/// Starts the copy of 16 bytes from global to shared memory, both aligned to 16, past L1.
__device__ __forceinline__ void cp_async16(void* dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(detail::shared_address(dst)),
               "l"(src)
               : "memory");
}
/// The same, but only the first `src_bytes` (0 to 16) are read; the rest of dst becomes zero.
__device__ __forceinline__ void cp_async16_zfill(void* dst, const void* src, int src_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(detail::shared_address(dst)),
               "l"(src), "r"(src_bytes)
               : "memory");
}
/// The copies that this thread started since the last commit become one group.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most the latest kPending groups of this thread are under way. Other threads see
/// the copies after the next barrier.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Four 8 x 8 matrices of 16-bit elements. Lane 8 m + i passes the address of row i of matrix m,
/// aligned to 16 bytes. r[m] of lane l gets the elements 2 (l % 4) and + 1 of row l / 4 of matrix
/// m.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(detail::shared_address(row))
               : "memory");
}
/// The same with every matrix transposed: lane l gets the rows 2 (l % 4) and + 1 of column l / 4.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(detail::shared_address(row))
               : "memory");
}

/// d (16 x 8, float32) += a (16 x 16) b (16 x 8), bfloat16. With r = lane / 4 and c = 2 (lane % 4),
/// every register a pair of neighbouring columns (of b: rows), the even one in the lower half:
///   a: rows r, r + 8, r, r + 8 at the columns c, c, c + 8, c + 8;
///   b: rows c and c + 8 of column r;   d: (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1).
__device__ __forceinline__ void mma_bf16_16816(float (&d)[4], const unsigned (&a)[4],
                                               const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// 2^x within 2 ulp; results below the smallest normal number are 0, NaN stays NaN.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

/// Two numbers rounded to bfloat16, `low` in the lower half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  unsigned bits;
  __builtin_memcpy(&bits, &pair, sizeof bits);
  return bits;
}
}  // namespace accrue::cuda

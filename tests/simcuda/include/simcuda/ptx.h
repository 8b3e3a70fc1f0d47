#pragma once
// The emulated twins of the inline PTX in core/cuda/ptx.cuh. Fragment layouts: PTX ISA, "matrix
// fragments for mma.m16n8k16", "... mma.m16n8k8" and "ldmatrix".
#include <simcuda/device.h>

namespace simcuda {

void cp_async(void* shared, const void* global, int bytes, int source_bytes);
void cp_async_commit_group();
void cp_async_wait_group(int pending);
/// `matrices` is 1, 2 or 4; fills that many registers.
void ldmatrix(unsigned* registers, int matrices, bool transposed, const void* row, const char* file,
              int line);
enum class Mma { kBf16, kTf32 };
void mma(Mma kind, float* d, const unsigned* a, const unsigned* b, const char* file, int line);

namespace ptx {

/// 16 bytes from global to shared memory; there after commit, wait and a barrier.
SIMCUDA_INLINE void cp_async16(void* shared, const void* global) {
  cp_async(shared, global, 16, 16);
}
/// Reads only the first `source_bytes` (0 to 16) bytes, the rest becomes zero.
SIMCUDA_INLINE void cp_async16_zfill(void* shared, const void* global, int source_bytes) {
  cp_async(shared, global, 16, source_bytes);
}
SIMCUDA_INLINE void cp_async8(void* shared, const void* global) { cp_async(shared, global, 8, 8); }
SIMCUDA_INLINE void cp_async4(void* shared, const void* global) { cp_async(shared, global, 4, 4); }
SIMCUDA_INLINE void cp_async_commit() { cp_async_commit_group(); }
/// Waits until at most N of this thread's groups are under way.
template <int N>
SIMCUDA_INLINE void cp_async_wait() {
  cp_async_wait_group(N);
}

/// 8 x 8 matrices of 16 bits from shared memory: lane 8 i + r names row r of matrix i.
SIMCUDA_INLINE void ldmatrix_x1(unsigned (&r)[1], const void* row, SIMCUDA_PLACE) {
  ldmatrix(r, 1, false, row, file, line);
}
SIMCUDA_INLINE void ldmatrix_x2(unsigned (&r)[2], const void* row, SIMCUDA_PLACE) {
  ldmatrix(r, 2, false, row, file, line);
}
SIMCUDA_INLINE void ldmatrix_x4(unsigned (&r)[4], const void* row, SIMCUDA_PLACE) {
  ldmatrix(r, 4, false, row, file, line);
}
SIMCUDA_INLINE void ldmatrix_x1_trans(unsigned (&r)[1], const void* row, SIMCUDA_PLACE) {
  ldmatrix(r, 1, true, row, file, line);
}
SIMCUDA_INLINE void ldmatrix_x2_trans(unsigned (&r)[2], const void* row, SIMCUDA_PLACE) {
  ldmatrix(r, 2, true, row, file, line);
}
SIMCUDA_INLINE void ldmatrix_x4_trans(unsigned (&r)[4], const void* row, SIMCUDA_PLACE) {
  ldmatrix(r, 4, true, row, file, line);
}

/// d += a b; a is 16 x 16 by rows, b is 16 x 8 by columns, bfloat16; d is 16 x 8, float32.
SIMCUDA_INLINE void mma_bf16_16816(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                   SIMCUDA_PLACE) {
  mma(Mma::kBf16, d, a, b, file, line);
}
/// d += a b; a is 16 x 8, b is 8 x 8, float32 of which the upper 19 bits count; d is 16 x 8.
SIMCUDA_INLINE void mma_tf32_1688(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                  SIMCUDA_PLACE) {
  mma(Mma::kTf32, d, a, b, file, line);
}

}  // namespace ptx
}  // namespace simcuda

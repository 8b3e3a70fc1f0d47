#pragma once
// Right kernels that the proofs put on streams and into graphs.
#include <cuda_runtime_api.h>

#include <cstdint>

/// p[0..n) = value
cudaError_t run_fill(float* p, float value, int n, cudaStream_t s);
/// out = a + b
cudaError_t run_add(float* out, const float* a, const float* b, int n, cudaStream_t s);
/// *slot = the number of tickets that were drawn from *counter before, by an atomic operation.
cudaError_t run_ticket(unsigned* counter, unsigned* slot, cudaStream_t s);
/// *sum = p[0] + ... + p[n - 1], by one block.
cudaError_t run_sum(float* sum, const float* p, int n, cudaStream_t s);
/// One block of threads that do nothing.
cudaError_t run_empty(unsigned threads, cudaStream_t s);

/// d (16 x 8) = a b on one warp. a is 16 x 16, b 16 x 8, bfloat16; `loads` says how the fragments
/// come from shared memory.
enum class Loads { kByHand, kX4, kX2Trans, kX4Trans, kX1, kX1Trans };
cudaError_t run_mma_bf16(Loads loads, const std::uint16_t* a, const std::uint16_t* b, float* d,
                         cudaStream_t s);
/// a is 16 x 8, b 8 x 8, float32. kByHand or kX4.
cudaError_t run_mma_tf32(Loads loads, const float* a, const float* b, float* d, cudaStream_t s);
/// Copies n floats by cp.async of `bytes` (4, 8, 16) each, in two groups; with zero fill the target
/// has a multiple of four floats, the last ones zero.
cudaError_t run_cp_async(int bytes, const float* in, float* out, int n, cudaStream_t s);

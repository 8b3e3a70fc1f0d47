// One small kernel for each mistake that the simulated CUDA must find. With wrong = 0 every kernel
// is right. The line to be reported ends in "bug: <name>".
#include "planted_bugs.h"

#include <simcuda/device.h>
#include <simcuda/ptx.h>

namespace {

constexpr unsigned kFull = 0xffffffffu;

__global__ void missing_syncthreads(float* out, int wrong) {
  ACCRUE_SHARED(float, row, [128]);
  const unsigned t = threadIdx.x;
  row[t] = float(t);
  if (!wrong) __syncthreads();
  out[t] = row[(t + 32) % 128];  // bug: missing_syncthreads
}

__global__ void reused_without_syncthreads(float* out, int wrong) {
  ACCRUE_SHARED(float, row, [128]);
  const unsigned t = threadIdx.x;
  float sum = 0;
  for (int step = 0; step < 2; ++step) {
    row[t] = float(t);  // bug: reused_without_syncthreads
    __syncthreads();
    sum += row[127 - t];
    if (!wrong) __syncthreads();
  }
  out[t] = sum;
}

__global__ void missing_syncwarp(float* out, int wrong) {
  ACCRUE_SHARED(float, row, [32]);
  const unsigned t = threadIdx.x;
  row[t] = float(t);
  if (!wrong) __syncwarp();
  out[t] = row[t ^ 1];  // bug: missing_syncwarp
}

__global__ void partial_syncwarp(float* out, int wrong) {
  ACCRUE_SHARED(float, row, [32]);
  const unsigned t = threadIdx.x;
  row[t] = float(t);
  __syncwarp(t < 16 ? 0x0000ffffu : 0xffff0000u);
  out[t] = row[t ^ (wrong ? 16 : 1)];  // bug: partial_syncwarp
}

__global__ void narrow_syncwarp(float* out, int wrong) {
  ACCRUE_SHARED(float, row, [32]);
  const unsigned t = threadIdx.x;
  row[t] = float(t);
  __syncwarp();
  for (unsigned n = 16; n > 0; n >>= 1) {
    if (t < n) row[t] += row[t + n];  // bug: narrow_syncwarp
    const unsigned met = wrong ? n / 2 : n;
    if (t < met) __syncwarp((1u << met) - 1);
  }
  if (t == 0) *out = row[0];
}

// Lanes that have only read are waited for as well.
__global__ void partial_syncwarp_after_reads(float* out, int wrong) {
  ACCRUE_SHARED(float, row, [32]);
  const unsigned t = threadIdx.x;
  row[t] = float(t);
  __syncwarp();
  out[t] = row[t ^ 1];
  __syncwarp(t < 16 ? 0x0000ffffu : 0xffff0000u);
  row[t ^ (wrong ? 17 : 0)] = 0;  // bug: partial_syncwarp_after_reads
}

__global__ void past_the_row(float* out, int n, int wrong) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n + wrong) out[i] = 1.0f;  // bug: past_the_row
}

__global__ void past_the_tile(float* out, int wrong) {
  ACCRUE_SHARED(float, tile, [8][33]);
  const unsigned t = threadIdx.x;
  float* const last = tile[7];
  last[t + unsigned(wrong)] = 1.0f;  // bug: past_the_tile
  if (t == 0) last[0] = 2.0f;
  out[t] = last[t + unsigned(wrong)];
}

__global__ void dynamic_too_small(float* out) {
  ACCRUE_SHARED_DYNAMIC(float, row);
  row[threadIdx.x] = 1.0f;  // bug: dynamic_too_small
  out[threadIdx.x] = row[threadIdx.x];
}

__global__ void uninitialised_shared(float* out, int wrong) {
  ACCRUE_SHARED(float, row, [64]);
  const unsigned t = threadIdx.x;
  if (t < 64 - unsigned(wrong)) row[t] = 1.0f;
  __syncthreads();
  out[t] = row[63 - t];  // bug: uninitialised_shared
}

__global__ void uninitialised_global(float* out, const float* in) {
  out[threadIdx.x] = in[threadIdx.x];  // bug: uninitialised_global
}

__global__ void static_and_dynamic(float* out) {
  ACCRUE_SHARED_DYNAMIC(float, row);
  ACCRUE_SHARED(float, fixed, [32 * 256]);
  const unsigned t = threadIdx.x;
  row[t] = fixed[t] = 1.0f;
  out[t] = row[t] + fixed[t];
}

__global__ void traps(float* out, int wrong) {
  if (wrong && threadIdx.x == 3) __trap();  // bug: traps
  out[threadIdx.x] = 1.0f;
}

__global__ void assumes(float* out, int wrong) {
  const float* const p = wrong ? nullptr : out;
  __builtin_assume(__isGlobal(p));  // bug: assumes
  out[threadIdx.x] = 1.0f;
}

__global__ void early_return(float* out, int wrong) {
  const unsigned t = threadIdx.x;
  if (wrong && t >= 100) return;
  out[t] = 1.0f;
  __syncthreads();  // bug: early_return
}

__global__ void divergent_barriers(float* out, int wrong) {
  const unsigned t = threadIdx.x;
  if (wrong && t < 32) {
    out[t] = 1.0f;
    __syncthreads();
  } else {
    out[t] = 2.0f;
    __syncthreads();  // bug: divergent_barriers
  }
}

__global__ void wrong_mask(float* out, int wrong) {
  const unsigned t = threadIdx.x;
  const unsigned mask = wrong ? 0x0000ffffu : kFull;
  out[t] = __shfl_xor_sync(mask, float(t), 1);  // bug: wrong_mask
}

__global__ void lane_outside(float* out, int wrong) {
  const unsigned t = threadIdx.x;
  float v = 0;
  if (t < 16 || !wrong)
    v = __shfl_sync(wrong ? 0xffffu : kFull, float(t), 16);  // bug: lane_outside
  out[t] = v;
}

__global__ void exited_lanes(float* out, int wrong) {
  const unsigned t = threadIdx.x;
  if (wrong && t >= 20) return;
  out[t] = __shfl_xor_sync(kFull, float(t), 1);  // bug: exited_lanes
}

__global__ void misaligned(float* out, const float* in, int wrong) {
  const float4 v = *reinterpret_cast<const float4*>(in + wrong);  // bug: misaligned
  out[threadIdx.x] = v.x + v.w;
}

__global__ void blocks_share_an_address(float* out, int wrong) {
  out[wrong ? 0 : blockIdx.x] = 1.0f;  // bug: blocks_share_an_address
}

__global__ void histogram(int* bins, const int* values, int wrong) {
  const int v = values[blockIdx.x * blockDim.x + threadIdx.x];
  if (wrong)
    bins[v] += 1;  // bug: histogram
  else
    atomicAdd(&bins[v], 1);
}

__global__ void copy_without_wait(float* out, const float* in, int wrong) {
  ACCRUE_SHARED(float, tile, [128]);
  const unsigned t = threadIdx.x;
  simcuda::ptx::cp_async16(&tile[t * 4], in + t * 4);
  simcuda::ptx::cp_async_commit();
  if (!wrong) simcuda::ptx::cp_async_wait<0>();
  __syncwarp();
  out[t] = tile[t * 4];  // bug: copy_without_wait
  if (wrong) simcuda::ptx::cp_async_wait<0>();
}

__global__ void host_pointer(float* out, const float* in) {
  out[threadIdx.x] = in[threadIdx.x];  // bug: host_pointer
}

__global__ void axpy(float a, const float* x, float* y, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] += a * x[i];  // bug: axpy
}

// Sizes that are not constant, or above 64 bytes.
__global__ void long_copy(float* out, const float* in, int n, int wrong) {
  __builtin_memcpy(out, in + wrong, std::size_t(n) * 4);  // bug: long_copy
}

__global__ void long_fill(float* out, int n, int wrong) {
  std::memset(out + wrong, 0, std::size_t(n) * 4);  // bug: long_fill
}

__global__ void long_move(float* out, int n, int wrong) {
  std::memset(out, 0, std::size_t(n) * 4);
  std::memmove(out + wrong + 1, out, std::size_t(n - 1) * 4);  // bug: long_move
}

struct Row {
  float values[32];
};
__global__ void structure(float* out, const float* in, int wrong) {
  const Row row = *reinterpret_cast<const Row*>(in + 992 + wrong);  // bug: structure
  out[0] = row.values[31];
}

__global__ void endless_wait(int* flag, int wrong) {
  while (wrong && *const_cast<volatile int*>(flag) == 0) continue;  // bug: endless_wait
}

__global__ void endless_loop(int wrong) {
  while (wrong) asm volatile("");  // bug: endless_loop
}

__global__ void endless_barriers(int wrong) {
  for (int again = 1; again; again = wrong) __syncthreads();  // bug: endless_barriers
}

__global__ void last_block_sums(const float* in, float* partial, unsigned* counter, float* out,
                                int wrong) {
  ACCRUE_SHARED(float, row, [64]);
  ACCRUE_SHARED(unsigned, place);
  const unsigned t = threadIdx.x;
  row[t] = in[blockIdx.x * 64 + t];
  __syncthreads();
  if (t == 0) {
    float sum = 0;
    for (int i = 0; i < 64; ++i) sum += row[i];
    partial[blockIdx.x] = sum;
    if (!wrong) __threadfence();
    place = atomicAdd(counter, 1u);
    if (!wrong) __threadfence();
  }
  __syncthreads();
  if (place != gridDim.x - 1 || t != 0) return;
  float sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) sum += partial[b];  // bug: last_block_sums
  *out = sum;
}

// A programmatic dependent launch: what the kernel before it writes is not there yet.
__global__ void reads_too_early(float* out, const float* in, int wrong) {
  float value = 0;
  if (wrong) value = in[threadIdx.x];  // bug: reads_too_early
  simcuda::wait_for_earlier_kernels();
  if (!wrong) value = in[threadIdx.x];
  out[threadIdx.x] = value;
}

__global__ void ends_too_early(float* out, int n, int wrong) {
  const int i = int(threadIdx.x);
  if (wrong && i >= n) return;
  simcuda::wait_for_earlier_kernels();
  if (i < n) out[i] = 1.0f;
}

}  // namespace

using simcuda::launch;

cudaError_t run_planted(const std::string& name, bool bug, const Buffers& b, cudaStream_t s) {
  const int w = bug;
  if (name == "missing_syncthreads") return launch(missing_syncthreads, 1, 128, 0, s, b.out, w);
  if (name == "reused_without_syncthreads")
    return launch(reused_without_syncthreads, 1, 128, 0, s, b.out, w);
  if (name == "missing_syncwarp") return launch(missing_syncwarp, 1, 32, 0, s, b.out, w);
  if (name == "partial_syncwarp") return launch(partial_syncwarp, 1, 32, 0, s, b.out, w);
  if (name == "narrow_syncwarp") return launch(narrow_syncwarp, 1, 32, 0, s, b.out, w);
  if (name == "partial_syncwarp_after_reads")
    return launch(partial_syncwarp_after_reads, 1, 32, 0, s, b.out, w);
  if (name == "static_and_dynamic")  // 32 KiB and 16 KiB are all that a kernel may have
    return launch(static_and_dynamic, 1, 32, bug ? 16400 : 16384, s, b.out);
  if (name == "traps") return launch(traps, 1, 32, 0, s, b.out, w);
  if (name == "assumes") return launch(assumes, 1, 32, 0, s, b.out, w);
  if (name == "past_the_row") return launch(past_the_row, 5, 256, 0, s, b.out, 1024, w);
  if (name == "past_the_tile") return launch(past_the_tile, 1, 33, 0, s, b.out, w);
  if (name == "dynamic_too_small")
    return launch(dynamic_too_small, 1, 64, bug ? 252 : 256, s, b.out);
  if (name == "uninitialised_shared") return launch(uninitialised_shared, 1, 64, 0, s, b.out, w);
  if (name == "uninitialised_global")
    return launch(uninitialised_global, 1, 64, 0, s, b.out, bug ? b.fresh : b.in);
  if (name == "early_return") return launch(early_return, 1, 128, 0, s, b.out, w);
  if (name == "divergent_barriers") return launch(divergent_barriers, 1, 64, 0, s, b.out, w);
  if (name == "wrong_mask") return launch(wrong_mask, 1, 32, 0, s, b.out, w);
  if (name == "lane_outside") return launch(lane_outside, 1, 32, 0, s, b.out, w);
  if (name == "exited_lanes") return launch(exited_lanes, 1, 32, 0, s, b.out, w);
  if (name == "misaligned") return launch(misaligned, 1, 32, 0, s, b.out, b.in, w);
  if (name == "blocks_share_an_address")
    return launch(blocks_share_an_address, 4, 1, 0, s, b.out, w);
  if (name == "histogram") return launch(histogram, 8, 128, 0, s, b.bins, b.values, w);
  if (name == "copy_without_wait") return launch(copy_without_wait, 1, 32, 0, s, b.out, b.in, w);
  if (name == "long_copy") return launch(long_copy, 1, 1, 0, s, b.out, b.in, 1024, w);
  if (name == "long_fill") return launch(long_fill, 1, 1, 0, s, b.out, 1024, w);
  if (name == "long_move") return launch(long_move, 1, 1, 0, s, b.out, 1024, w);
  if (name == "structure") return launch(structure, 1, 1, 0, s, b.out, b.in, w);
  if (name == "endless_wait") return launch(endless_wait, 1, 32, 0, s, b.bins, w);
  if (name == "endless_loop") return launch(endless_loop, 1, 32, 0, s, w);
  if (name == "endless_barriers") return launch(endless_barriers, 1, 64, 0, s, w);
  if (name == "host_pointer")
    return launch(host_pointer, 1, 32, 0, s, b.out, bug ? b.pageable : b.in);
  if (name == "reads_too_early") return launch(true, reads_too_early, 1, 32, 0, s, b.out, b.in, w);
  if (name == "reads_too_early, not launched early")
    return launch(reads_too_early, 1, 32, 0, s, b.out, b.in, w);
  if (name == "ends_too_early") return launch(true, ends_too_early, 1, 64, 0, s, b.out, 40, w);
  if (name == "last_block_sums")
    return launch(last_block_sums, 8, 64, 0, s, b.in, b.out, reinterpret_cast<unsigned*>(b.bins),
                  b.out + 16, w);
  return run_planted_ptx(name, bug, b, s);
}

cudaError_t allow_shared_memory(int bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(static_and_dynamic),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

cudaError_t run_axpy(float a, const float* x, float* y, int n, cudaStream_t s) {
  return launch(axpy, unsigned(n + 255) / 256, 256, 0, s, a, x, y, n);
}

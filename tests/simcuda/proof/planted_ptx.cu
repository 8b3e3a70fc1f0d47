// Mistakes around inline PTX, and limits of a launch; see planted_bugs.cu.
#include <simcuda/device.h>
#include <simcuda/ptx.h>

#include "planted_bugs.h"

namespace {

using namespace simcuda::ptx;

__global__ void newest_group(float* out, const float* in, int wrong) {
  ACCRUE_SHARED(float, tile, [256]);
  const unsigned t = threadIdx.x;
  for (unsigned i = 0; i < 2; ++i) {
    cp_async16(&tile[i * 128 + t * 4], in + i * 128 + t * 4);
    cp_async_commit();
  }
  if (wrong)
    cp_async_wait<1>();
  else
    cp_async_wait<0>();
  out[t] = tile[128 + t * 4];  // bug: newest_group
  cp_async_wait<0>();
}

__global__ void copy_never_awaited(const float* in, int wrong) {
  ACCRUE_SHARED(float, tile, [128]);
  cp_async16(&tile[threadIdx.x * 4], in + threadIdx.x * 4);  // bug: copy_never_awaited
  cp_async_commit();
  if (!wrong) cp_async_wait<0>();
}

__global__ void copy_seen_by_others(float* out, const float* in, int wrong) {
  ACCRUE_SHARED(float, tile, [128]);
  const unsigned t = threadIdx.x;
  cp_async16(&tile[t * 4], in + t * 4);
  cp_async_commit();
  cp_async_wait<0>();
  if (!wrong) __syncwarp();
  out[t] = tile[(t ^ 1) * 4];  // bug: copy_seen_by_others
}

__global__ void copy_misaligned(const float* in, int wrong) {
  ACCRUE_SHARED(float, tile, [132]);
  cp_async16(&tile[threadIdx.x * 4], in + threadIdx.x * 4 + wrong);  // bug: copy_misaligned
  cp_async_commit();
  cp_async_wait<0>();
}

__global__ void copy_past_the_end(const float* in, int wrong) {
  ACCRUE_SHARED(float, tile, [128]);
  const unsigned from = 896 + threadIdx.x * 4 + 2;
  const int there = from + 4 <= 1024 || wrong ? 8 : 0;
  cp_async8(&tile[threadIdx.x * 4], in + from);
  if (there) cp_async8(&tile[threadIdx.x * 4 + 2], in + from + 2);  // bug: copy_past_the_end
  cp_async_commit();
  cp_async_wait<0>();
}

__global__ void matrix_too_early(float* out, int wrong) {
  ACCRUE_SHARED(float, tile, [8][4]);
  const unsigned t = threadIdx.x;
  tile[t / 4][t % 4] = 1.0f;
  if (!wrong) __syncwarp();
  unsigned r[1];
  ldmatrix_x1(r, tile[t % 8]);  // bug: matrix_too_early
  out[t] = __uint_as_float(r[0]);
}

__global__ void matrix_misaligned(float* out, int wrong) {
  ACCRUE_SHARED(float, tile, [8][5]);
  const unsigned t = threadIdx.x;
  tile[t / 4][t % 4] = 1.0f;
  if (t % 4 == 0) tile[t / 4][4] = 1.0f;
  __syncwarp();
  unsigned r[1];
  const void* const row = wrong ? tile[t % 8] : tile[t % 2 * 4];
  ldmatrix_x1(r, row);  // bug: matrix_misaligned
  out[t] = __uint_as_float(r[0]);
}

__global__ void matrix_from_global(float* out, const float* in, int wrong) {
  ACCRUE_SHARED(float, tile, [8][4]);
  const unsigned t = threadIdx.x;
  tile[t / 4][t % 4] = in[t];
  __syncwarp();
  unsigned r[1];
  const void* const row = wrong ? in + t % 8 * 4 : tile[t % 8];
  ldmatrix_x1(r, row);  // bug: matrix_from_global
  out[t] = __uint_as_float(r[0]);
}

__global__ void half_a_warp(float* out, int wrong) {
  float d[4] = {};
  const unsigned a[4] = {}, b[2] = {};
  if (threadIdx.x < 16 || !wrong) mma_bf16_16816(d, a, b);  // bug: half_a_warp
  out[threadIdx.x] = d[0];
}

}  // namespace

using simcuda::launch;

cudaError_t run_planted_ptx(const std::string& name, bool bug, const Buffers& b, cudaStream_t s) {
  const int w = bug;
  if (name == "newest_group") return launch(newest_group, 1, 32, 0, s, b.out, b.in, w);
  if (name == "copy_never_awaited") return launch(copy_never_awaited, 1, 32, 0, s, b.in, w);
  if (name == "copy_seen_by_others")
    return launch(copy_seen_by_others, 1, 32, 0, s, b.out, b.in, w);
  if (name == "copy_misaligned") return launch(copy_misaligned, 1, 32, 0, s, b.in, w);
  if (name == "copy_past_the_end") return launch(copy_past_the_end, 1, 32, 0, s, b.in, w);
  if (name == "matrix_too_early") return launch(matrix_too_early, 1, 32, 0, s, b.out, w);
  if (name == "matrix_misaligned") return launch(matrix_misaligned, 1, 32, 0, s, b.out, w);
  if (name == "matrix_from_global") return launch(matrix_from_global, 1, 32, 0, s, b.out, b.in, w);
  if (name == "half_a_warp") return launch(half_a_warp, 1, 32, 0, s, b.out, w);
  return cudaErrorInvalidValue;
}

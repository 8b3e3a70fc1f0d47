#include "kernels.h"

#include <simcuda/device.h>
#include <simcuda/ptx.h>

namespace {

using namespace simcuda::ptx;
using simcuda::launch;

__global__ void fill(float* p, float value, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) p[i] = value;
}

__global__ void add(float* out, const float* a, const float* b, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = a[i] + b[i];
}

__global__ void ticket(unsigned* counter, unsigned* slot) { *slot = atomicAdd(counter, 1u); }

__global__ void sum_all(float* sum, const float* p, int n) {
  ACCRUE_SHARED(float, part, [8]);
  const int t = int(threadIdx.x);
  float mine = 0;
  for (int i = t; i < n; i += 256) mine += p[i];
  for (int d = 16; d > 0; d /= 2) mine += __shfl_xor_sync(~0u, mine, d);
  if (t % 32 == 0) part[t / 32] = mine;
  __syncthreads();
  if (t != 0) return;
  float all = 0;
  for (int w = 0; w < 8; ++w) all += part[w];
  *sum = all;
}

__global__ void empty() {}

using Half = std::uint16_t;
unsigned pair(Half low, Half high) { return unsigned{high} << 16 | low; }

// The layouts of the PTX ISA, spelled out: g = lane / 4, t = lane % 4.
__global__ void mma_bf16(Loads loads, const Half* a, const Half* b, float* d) {
  ACCRUE_SHARED(Half, as, [16][24]);
  ACCRUE_SHARED(Half, bs, [16][24]);
  ACCRUE_SHARED(Half, at, [16][24]);
  ACCRUE_SHARED(Half, bt, [8][24]);
  const int lane = int(threadIdx.x), g = lane / 4, t = lane % 4, r = lane % 8, m = lane / 8;
  for (int i = lane; i < 256; i += 32) as[i / 16][i % 16] = at[i % 16][i / 16] = a[i];
  for (int i = lane; i < 128; i += 32) bs[i / 8][i % 8] = bt[i % 8][i / 8] = b[i];
  __syncwarp();
  unsigned x[4] = {}, y[2] = {};
  const auto a_by_hand = [&] {
    for (int i = 0; i < 4; ++i) {
      const int row = g + i % 2 * 8, column = 2 * t + i / 2 * 8;
      x[i] = pair(as[row][column], as[row][column + 1]);
    }
  };
  const auto b_by_hand = [&] {
    for (int i = 0; i < 2; ++i) y[i] = pair(bs[2 * t + i * 8][g], bs[2 * t + 1 + i * 8][g]);
  };
  switch (loads) {
    case Loads::kByHand:
      a_by_hand();
      b_by_hand();
      break;
    case Loads::kX4:
      ldmatrix_x4(x, &as[r + m % 2 * 8][m / 2 * 8]);
      ldmatrix_x2(y, &bt[r][m % 2 * 8]);
      break;
    case Loads::kX2Trans:
      a_by_hand();
      ldmatrix_x2_trans(y, &bs[r + m % 2 * 8][0]);
      break;
    case Loads::kX4Trans:
      ldmatrix_x4_trans(x, &at[r + m / 2 * 8][m % 2 * 8]);
      b_by_hand();
      break;
    default:
      for (int i = 0; i < 4; ++i) {
        unsigned one[1];
        if (loads == Loads::kX1)
          ldmatrix_x1(one, &as[r + i % 2 * 8][i / 2 * 8]);
        else
          ldmatrix_x1_trans(one, &at[r + i / 2 * 8][i % 2 * 8]);
        x[i] = one[0];
        if (i > 1) continue;
        if (loads == Loads::kX1)
          ldmatrix_x1(one, &bt[r][i * 8]);
        else
          ldmatrix_x1_trans(one, &bs[r + i * 8][0]);
        y[i] = one[0];
      }
  }
  float c[4] = {};
  mma_bf16_16816(c, x, y);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}

__global__ void mma_tf32(Loads loads, const float* a, const float* b, float* d) {
  ACCRUE_SHARED(float, as, [16][12]);
  ACCRUE_SHARED(float, bt, [8][12]);
  const int lane = int(threadIdx.x), g = lane / 4, t = lane % 4, r = lane % 8, m = lane / 8;
  for (int i = lane; i < 128; i += 32) as[i / 8][i % 8] = a[i];
  for (int i = lane; i < 64; i += 32) bt[i % 8][i / 8] = b[i];
  __syncwarp();
  unsigned x[4], y[2];
  if (loads == Loads::kByHand) {
    for (int i = 0; i < 4; ++i) x[i] = __float_as_uint(as[g + i % 2 * 8][t + i / 2 * 4]);
    for (int i = 0; i < 2; ++i) y[i] = __float_as_uint(bt[g][t + i * 4]);
  } else {
    ldmatrix_x4(x, &as[r + m % 2 * 8][m / 2 * 4]);
    ldmatrix_x2(y, &bt[r][m % 2 * 4]);
  }
  float c[4] = {};
  mma_tf32_1688(c, x, y);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}

__global__ void cp_async_copy(int bytes, const float* in, float* out, int n) {
  ACCRUE_SHARED_DYNAMIC(float, row);
  const int per = bytes / 4, t = int(threadIdx.x), pieces = (n + per - 1) / per;
  for (int half = 0; half < 2; ++half) {
    for (int i = t * 2 + half; i < pieces; i += 64) {
      const int left = n - i * per;
      if (bytes == 4)
        cp_async4(row + i, in + i);
      else if (bytes == 8)
        cp_async8(row + 2 * i, in + 2 * i);
      else if (left >= 4)
        cp_async16(row + 4 * i, in + 4 * i);
      else
        cp_async16_zfill(row + 4 * i, in + 4 * i, left * 4);
    }
    cp_async_commit();
  }
  cp_async_wait<1>();
  for (int i = t * 2; i < pieces; i += 64)  // a thread reads its own copies without a barrier
    for (int k = 0; k < per; ++k) out[i * per + k] = row[i * per + k];
  cp_async_wait<0>();
  __syncwarp();
  for (int i = (t ^ 1) * 2 + 1; i < pieces; i += 64)
    for (int k = 0; k < per; ++k) out[i * per + k] = row[i * per + k];
}

}  // namespace

cudaError_t run_fill(float* p, float value, int n, cudaStream_t s) {
  return launch(fill, unsigned(n + 127) / 128, 128, 0, s, p, value, n);
}
cudaError_t run_add(float* out, const float* a, const float* b, int n, cudaStream_t s) {
  return launch(add, unsigned(n + 127) / 128, 128, 0, s, out, a, b, n);
}
cudaError_t run_ticket(unsigned* counter, unsigned* slot, cudaStream_t s) {
  return launch(ticket, 1, 1, 0, s, counter, slot);
}
cudaError_t run_sum(float* sum, const float* p, int n, cudaStream_t s) {
  return launch(sum_all, 1, 256, 0, s, sum, p, n);
}
cudaError_t run_empty(unsigned threads, cudaStream_t s) { return launch(empty, 1, threads, 0, s); }
cudaError_t run_mma_bf16(Loads loads, const Half* a, const Half* b, float* d, cudaStream_t s) {
  return launch(mma_bf16, 1, 32, 0, s, loads, a, b, d);
}
cudaError_t run_mma_tf32(Loads loads, const float* a, const float* b, float* d, cudaStream_t s) {
  return launch(mma_tf32, 1, 32, 0, s, loads, a, b, d);
}
cudaError_t run_cp_async(int bytes, const float* in, float* out, int n, cudaStream_t s) {
  return launch(cp_async_copy, 1, 32, std::size_t(n + 3) / 4 * 16, s, bytes, in, out, n);
}

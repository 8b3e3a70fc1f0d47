#pragma once
// delta = sum(dy * y) of every query and head: what the softmax's gradient subtracts.
#include <accrue/core/cuda/reduce.cuh>
#include <accrue/core/cuda/vector.cuh>
#include <accrue/kernels/attention/problem.cuh>

namespace accrue::kernels::cuda {
namespace {
inline constexpr int kDeltaThreads = 256, kDeltaLanes = 8;
inline constexpr int kDeltaRows = kDeltaThreads / kDeltaLanes;

/// dy, y (batch, queries, heads, dim) -> delta (batch, heads, queries). Eight lanes a row, kPer
/// elements a time. `blocks`: of one batch.
template <int kPer, class T, class C>
__device__ __forceinline__ void delta_rows(const T* dy, const T* y, C* delta, unsigned blocks,
                                           int queries, int heads, int dim) {
  const int lane = static_cast<int>(threadIdx.x % kDeltaLanes);
  const unsigned batch = blockIdx.x / blocks;
  const int row = static_cast<int>(blockIdx.x - batch * blocks) * kDeltaRows +
                  static_cast<int>(threadIdx.x / kDeltaLanes);
  const bool inside = row < queries * heads;
  const std::int64_t first = static_cast<std::int64_t>(batch) * queries * heads;
  C sum = 0;
  if (inside) {
    const std::int64_t at = (first + row) * dim;
    for (int d = lane * kPer; d < dim; d += kDeltaLanes * kPer) {
      C a[kPer], b[kPer];
      load<kPer>(dy + at + d, a);
      load<kPer>(y + at + d, b);
#pragma unroll
      for (int i = 0; i < kPer; ++i) sum += a[i] * b[i];
    }
  }
  sum = warp_sum<kDeltaLanes>(sum);
  if (inside && lane == 0) {
    const int t = row / heads, h = row - t * heads;
    delta[first + static_cast<std::int64_t>(h) * queries + t] = sum;
  }
}

template <class T>
__global__ void __launch_bounds__(kDeltaThreads)
    attention_delta(const T* __restrict__ dy, const T* __restrict__ y,
                    accumulate_t<T>* __restrict__ delta, unsigned blocks, int queries, int heads,
                    int dim) {
  wait_for_earlier_kernels();
  delta_rows<kPack<T>>(dy, y, delta, blocks, queries, heads, dim);
}
/// Rows that are not aligned.
template <class T>
__global__ void __launch_bounds__(kDeltaThreads)
    attention_delta_scalar(const T* __restrict__ dy, const T* __restrict__ y,
                           accumulate_t<T>* __restrict__ delta, unsigned blocks, int queries,
                           int heads, int dim) {
  wait_for_earlier_kernels();
  delta_rows<1>(dy, y, delta, blocks, queries, heads, dim);
}
}  // namespace
}  // namespace accrue::kernels::cuda

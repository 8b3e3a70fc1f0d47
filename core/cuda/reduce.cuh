#pragma once
// Reductions of a warp and of a block, in a fixed order: the same bits in every run.
#include <accrue/core/cuda/device.cuh>

namespace accrue::cuda {

struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
/// NaN wins.
struct Max {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a != a ? a : (b > a || b != b ? b : a);
  }
};

/// Every lane of the warp gets the result over all 32 lanes. kWidth < 32: over each aligned group
/// of kWidth lanes (a power of two).
template <int kWidth = kWarp, class T, class Op>
__device__ __forceinline__ T warp_reduce(T v, Op op) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2)
    v = op(v, __shfl_xor_sync(kFullMask, v, offset));
  return v;
}
template <int kWidth = kWarp, class T>
__device__ __forceinline__ T warp_sum(T v) {
  return warp_reduce<kWidth>(v, Sum{});
}
template <int kWidth = kWarp, class T>
__device__ __forceinline__ T warp_max(T v) {
  return warp_reduce<kWidth>(v, Max{});
}

/// Every thread of a block of kThreads (a multiple of 32, one-dimensional) gets the result.
/// `scratch`: kThreads / 32 values in shared memory that nobody else uses; may be reused at once,
/// also by another block_reduce.
template <int kThreads, class T, class Op>
__device__ __forceinline__ T block_reduce(T v, T* scratch, Op op) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kThreads % kWarp == 0 && kWarps >= 1 && kWarps <= kWarp);
  v = warp_reduce(v, op);
  if constexpr (kWarps == 1) return v;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % kWarp == 0) scratch[thread / kWarp] = v;
  __syncthreads();
  T all = scratch[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) all = op(all, scratch[w]);
  __syncthreads();
  return all;
}
template <int kThreads, class T>
__device__ __forceinline__ T block_sum(T v, T* scratch) {
  return block_reduce<kThreads>(v, scratch, Sum{});
}
template <int kThreads, class T>
__device__ __forceinline__ T block_max(T v, T* scratch) {
  return block_reduce<kThreads>(v, scratch, Max{});
}
}  // namespace accrue::cuda

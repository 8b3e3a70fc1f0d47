#pragma once
// Sums over a dimension on the device: the plan of kernels/reduce.h in one or two kernels, in an
// order that depends on the plan and on kVector (the alignment) only. Every thread adds at most 64
// neighbours of one range in C, the rest happens in float64.
//
// What is summed is a type with
//   Real                                          C: float, or double for float64
//   kVector                                       elements of one access
//   load(i, count, Real (&out)[kVector])          elements i .. of the flat (outer, n, inner);
//                                                 those from `count` on become 0
// and where it goes one with put(j, double), j flat in (outer, inner).
#include <accrue/core/cuda/reduce.cuh>
#include <accrue/core/cuda/vector.cuh>
#include <accrue/kernels/reduce.h>

namespace accrue::kernels::cuda {

/// An array as what is summed: kV is 1, or kPack<T> when every access is aligned.
template <class T, int kV>
struct Elements {
  using Real = accumulate_t<T>;
  static constexpr int kVector = kV;
  const T* x;
  __device__ __forceinline__ void load(std::int64_t i, int count, Real (&out)[kV]) const {
    if (count >= kV)
      accrue::cuda::load<kV>(x + i, out);
    else
      accrue::cuda::load_partial<kV>(x + i, count, out);
  }
};
/// Whether vectors of the plan's rows may be read at p by 128-bit accesses.
inline bool reduce_aligned(const ReducePlan& plan, const void* p, std::int64_t element_bytes) {
  const std::int64_t row = plan.inner == 1 ? plan.n : plan.inner;
  const std::int64_t rows = plan.inner == 1 ? plan.outer : plan.outer * plan.n;
  return accrue::cuda::is_aligned(p) && (rows == 1 || row * element_bytes % 16 == 0);
}

/// y[j] = factor * sum, rounded to C and then to T.
template <class T, class C = accumulate_t<T>>
struct PutScaled {
  T* y;
  double factor;
  __device__ __forceinline__ void put(std::int64_t j, double sum) const {
    y[j] = accrue::cuda::from_accumulate<T>(static_cast<C>(sum * factor));
  }
};

namespace detail {
inline constexpr int kReduceThreads = 256;

// inner is 1: groups of kGroup threads take one range of one row each.
template <int kGroup, class Value, class Put>
__global__ void __launch_bounds__(kReduceThreads)
    sum_ranges(std::int64_t rows, std::int64_t n, std::int64_t range, std::int64_t ranges,
               Value value, Put put) {
  accrue::cuda::wait_for_earlier_kernels();
  using C = typename Value::Real;
  constexpr int kV = Value::kVector, kGroups = kReduceThreads / kGroup;
  ACCRUE_SHARED(double, scratch, [kReduceThreads / accrue::cuda::kWarp]);
  const int lane = static_cast<int>(threadIdx.x) % kGroup;
  const std::int64_t unit =
      static_cast<std::int64_t>(blockIdx.x) * kGroups + static_cast<int>(threadIdx.x) / kGroup;
  C sum[kV] = {};
  if (unit < rows * ranges) {
    const std::int64_t first = unit % ranges * range, left = n - first;
    const std::int64_t base = unit / ranges * n + first;
    const int count = static_cast<int>(left < range ? left : range);
#pragma unroll 4
    for (int i = lane * kV; i < count; i += kGroup * kV) {
      C v[kV];
      value.load(base + i, count - i, v);
#pragma unroll
      for (int k = 0; k < kV; ++k) sum[k] += v[k];
    }
  }
  double total = 0;
#pragma unroll
  for (int k = 0; k < kV; ++k) total += static_cast<double>(sum[k]);
  if constexpr (kGroup == kReduceThreads)
    total = accrue::cuda::block_sum<kReduceThreads>(total, scratch);
  else
    total = accrue::cuda::warp_sum(total);
  if (lane == 0 && unit < rows * ranges) put.put(unit, total);
}

// inner is more: blockDim.x * kV columns, whose rows in one range the y threads share.
template <class Value, class Put>
__global__ void __launch_bounds__(kReduceThreads)
    sum_columns(std::int64_t n, std::int64_t inner, std::int64_t range, std::int64_t ranges,
                std::int64_t tiles, Value value, Put put) {
  accrue::cuda::wait_for_earlier_kernels();
  using C = typename Value::Real;
  constexpr int kV = Value::kVector;
  ACCRUE_SHARED(double, sums, [kV][kReduceThreads]);
  const int width = static_cast<int>(blockDim.x), height = static_cast<int>(blockDim.y);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const std::int64_t unit = blockIdx.x, part = unit / tiles;
  const std::int64_t first_column = unit % tiles * (width * kV);
  const std::int64_t column = first_column + x * kV, left = inner - column;
  const std::int64_t first = part % ranges * range, rows = n - first < range ? n - first : range;
  C sum[kV] = {};
  if (left > 0) {
    const int count = left < kV ? static_cast<int>(left) : kV;
    const std::int64_t base = (part / ranges * n + first) * inner + column;
#pragma unroll 4
    for (std::int64_t row = y; row < rows; row += height) {
      C v[kV];
      value.load(base + row * inner, count, v);
#pragma unroll
      for (int k = 0; k < kV; ++k) sum[k] += v[k];
    }
  }
  const int thread = y * width + x;
#pragma unroll
  for (int k = 0; k < kV; ++k) sums[k][thread] = static_cast<double>(sum[k]);
  __syncthreads();
  if (thread >= width * kV) return;
  const int of = thread % width, k = thread / width;
  const std::int64_t mine = first_column + of * kV + k;
  if (mine >= inner) return;
  double total = 0;
  for (int r = 0; r < height; ++r) total += sums[k][r * width + of];
  put.put(part * inner + mine, total);
}

template <class Value, class Put>
void reduce_stage(Stream stream, const ReducePlan& plan, std::int64_t range, std::int64_t ranges,
                  const Value& value, const Put& put) {
  using accrue::cuda::blocks_for;
  if (plan.inner == 1) {
    const std::int64_t units = plan.outer * ranges;
    const bool wide = (plan.n < range ? plan.n : range) > 1024;
    accrue::cuda::launch_early(
        wide ? sum_ranges<kReduceThreads, Value, Put> : sum_ranges<accrue::cuda::kWarp, Value, Put>,
        dim3(blocks_for(units, wide ? 1 : kReduceThreads / accrue::cuda::kWarp)),
        dim3(kReduceThreads), 0, stream, plan.outer, plan.n, range, ranges, value, put);
    return;
  }
  int width = 1;
  while (width < accrue::cuda::kWarp && width * Value::kVector < plan.inner) width *= 2;
  const std::int64_t tile = width * Value::kVector, tiles = (plan.inner + tile - 1) / tile;
  accrue::cuda::launch_early(
      sum_columns<Value, Put>, dim3(blocks_for(plan.outer * ranges * tiles, 1)),
      dim3(static_cast<unsigned>(width), static_cast<unsigned>(kReduceThreads / width)), 0, stream,
      plan.n, plan.inner, range, ranges, tiles, value, put);
}
}  // namespace detail

/// put.put(j, sum over the middle), as kernels/cpu/reduce.h: cut into ranges of `range` (an
/// op that has its own workspace) or of plan.block(); with more than one, `workspace` holds
/// plan.outer * ranges * plan.inner numbers. A middle of size 0 puts zeros.
template <class Value, class Put>
void reduce(Stream stream, const ReducePlan& plan, std::int64_t range, double* workspace,
            const Value& value, const Put& put) {
  const std::int64_t ranges = chunk_count(plan.n, range);
  if (ranges <= 1) return detail::reduce_stage(stream, plan, range, 1, value, put);
  detail::reduce_stage(stream, plan, range, ranges, value, PutScaled<double>{workspace, 1.0});
  const ReducePlan rest{plan.outer, ranges, plan.inner};
  detail::reduce_stage(stream, rest, ranges, 1, Elements<double, 1>{workspace}, put);
}
template <class Value, class Put>
void reduce(Stream stream, const ReducePlan& plan, double* workspace, const Value& value,
            const Put& put) {
  reduce(stream, plan, plan.block(), workspace, value, put);
}
}  // namespace accrue::kernels::cuda

#pragma once
// A stable radix sort of (key, position) pairs on the device, eight bits a pass: a histogram of
// every tile of 2048 pairs, the sums before each histogram entry, the move. Tiles and the order in
// them depend on the number of pairs only, and the counting is in integers: the same order in every
// run. Source: Knuth, The Art of Computer Programming 3, 5.2.5; the ranks in a warp by match, as in
// Merrill and Grimshaw 2011.
#include <accrue/core/cuda/reduce.cuh>
#include <accrue/kernels/sort_plan.h>

namespace accrue::kernels::cuda {
using namespace accrue::cuda;

namespace radix {
inline constexpr int kThreads = 256, kWarps = kThreads / kWarp;
inline constexpr int kRounds = SortPlan::kTile / kThreads;  // pairs of a thread
inline constexpr int kDigits = 256;
static_assert(kThreads == kDigits);

/// Where a pass reads: keys that an earlier pass wrote.
struct Sorted {
  const unsigned *keys, *positions;
  __device__ __forceinline__ unsigned key(unsigned i) const { return keys[i]; }
  __device__ __forceinline__ unsigned position(unsigned i) const { return positions[i]; }
  __device__ __forceinline__ void check(unsigned) const {}
};

// counts[digit * tiles + tile]
template <class Source>
__global__ void __launch_bounds__(kThreads)
    radix_count(const Source source, unsigned n, int shift, unsigned* counts) {
  wait_for_earlier_kernels();
  ACCRUE_SHARED(unsigned, digits, [kDigits]);
  const unsigned thread = threadIdx.x;
  digits[thread] = 0;
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const unsigned i = blockIdx.x * unsigned{SortPlan::kTile} + r * kThreads + thread;
    if (i >= n) continue;
    source.check(i);
    atomicAdd(&digits[source.key(i) >> shift & (kDigits - 1)], 1u);
  }
  __syncthreads();
  counts[thread * gridDim.x + blockIdx.x] = digits[thread];
}

// One block: each entry becomes the sum of those before it.
inline constexpr int kScanThreads = 1024;
template <int kScanPerThread>
__global__ void __launch_bounds__(kScanThreads) radix_scan(unsigned* counts, unsigned n) {
  wait_for_earlier_kernels();
  constexpr int kScanWarps = kScanThreads / kWarp;
  ACCRUE_SHARED(unsigned, warp_sums, [kScanWarps]);
  const unsigned thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
  unsigned before = 0;  // the sum of all earlier rounds
  for (unsigned base = 0; base < n; base += kScanThreads * kScanPerThread) {
    const unsigned first = base + thread * kScanPerThread;
    unsigned v[kScanPerThread], sum = 0;
#pragma unroll
    for (int k = 0; k < kScanPerThread; ++k) {
      v[k] = first + k < n ? counts[first + k] : 0;
      sum += v[k];
    }
    unsigned upto = sum;  // of the lanes up to this one
#pragma unroll
    for (unsigned offset = 1; offset < kWarp; offset *= 2) {
      const unsigned other = __shfl_up_sync(kFullMask, upto, offset);
      if (lane >= offset) upto += other;
    }
    if (lane == kWarp - 1) warp_sums[warp] = upto;
    __syncthreads();
    unsigned at = before + upto - sum;
    for (int w = 0; w < kScanWarps; ++w) {
      if (w < static_cast<int>(warp)) at += warp_sums[w];
      before += warp_sums[w];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kScanPerThread; ++k) {
      if (first + k < n) counts[first + k] = at;
      at += v[k];
    }
  }
}

// A warp has 256 neighbouring pairs, in rounds of 32; ranks count equal digits of earlier rounds
// and lanes.
template <class Source>
__global__ void __launch_bounds__(kThreads)
    radix_move(const Source source, unsigned n, int shift, const unsigned* before, unsigned* keys,
               unsigned* positions) {
  wait_for_earlier_kernels();
  ACCRUE_SHARED(unsigned, digits, [kWarps][kDigits]);
  const unsigned thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) digits[w][thread] = 0;
  __syncthreads();
  unsigned key[kRounds], position[kRounds], rank[kRounds];
  const unsigned first = blockIdx.x * unsigned{SortPlan::kTile} + warp * kWarp * kRounds;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const unsigned i = first + r * kWarp + lane;
    key[r] = i < n ? source.key(i) : 0;
    position[r] = i < n ? source.position(i) : 0;
    const unsigned digit = key[r] >> shift & (kDigits - 1);
    const unsigned equal = __match_any_sync(kFullMask, i < n ? digit : kDigits);
    const unsigned earlier = equal & ((1u << lane) - 1);
    rank[r] = i < n ? digits[warp][digit] + __popc(earlier) : 0;
    __syncwarp();
    if (i < n && earlier == 0) digits[warp][digit] += __popc(equal);
    __syncwarp();
  }
  __syncthreads();
  unsigned at = before[thread * gridDim.x + blockIdx.x];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const unsigned count = digits[w][thread];
    digits[w][thread] = at;
    at += count;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (first + r * kWarp + lane >= n) continue;
    const unsigned to = digits[warp][key[r] >> shift & (kDigits - 1)] + rank[r];
    keys[to] = key[r];
    positions[to] = position[r];
  }
}
}  // namespace radix

/// Sorts `plan.n` pairs by key, equal keys by position. `source` gives key(i) <= plan.largest and
/// position(i), and check(i) is called once for each. The result lies in the workspace.
template <class Source>
radix::Sorted radix_sort(Stream stream, const SortPlan& plan, const Source& source,
                         unsigned* workspace) {
  const auto n = static_cast<unsigned>(plan.n);
  unsigned* counts = workspace + 4 * plan.n;
  const dim3 tiles(static_cast<unsigned>(plan.tiles()));
  radix::Sorted sorted{};
  const auto pass = [&](const auto& from, int number) {
    unsigned* keys = workspace + (number % 2 == 0 ? 0 : 2 * plan.n);
    unsigned* positions = keys + plan.n;
    const int shift = number * SortPlan::kBits;
    using From = std::remove_cvref_t<decltype(from)>;
    launch_early(radix::radix_count<From>, tiles, dim3(radix::kThreads), 0, stream, from, n, shift,
                 counts);
    launch_early(radix::radix_scan<4>, dim3(1), dim3(radix::kScanThreads), 0, stream, counts,
                 radix::kDigits * tiles.x);
    launch_early(radix::radix_move<From>, tiles, dim3(radix::kThreads), 0, stream, from, n, shift,
                 counts, keys, positions);
    sorted = {keys, positions};
  };
  pass(source, 0);
  for (int number = 1; number < plan.passes(); ++number) pass(sorted, number);
  return sorted;
}
}  // namespace accrue::kernels::cuda

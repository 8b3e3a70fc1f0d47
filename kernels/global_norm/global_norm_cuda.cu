#include <limits>
#include <vector>
#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/vector.cuh>
#include <accrue/kernels/cuda/segments.cuh>
#include <accrue/kernels/global_norm/global_norm.h>

namespace accrue::kernels::cuda {
namespace {
using accrue::cuda::kFullMask;

// Eight threads take one piece, each four of the 32 sums: so 16-byte loads keep the order that the
// header promises.
constexpr int kGroup = 8, kVector = kNormSums / kGroup;
constexpr int kThreads = 64, kChunks = kThreads / kGroup;
constexpr int kPerBlock = kChunks * static_cast<int>(kNormChunk);

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_pieces(SegmentBatch batch, const T* __restrict__ grads, double* __restrict__ sums) {
  accrue::cuda::wait_for_earlier_kernels();
  const auto part = batch.part(kPerBlock);
  const int thread = static_cast<int>(threadIdx.x), group = thread / kGroup;
  const int lane = thread % kGroup * kVector;
  // The block begins at a cut; the segment perhaps behind it.
  const int before = static_cast<int>(part.begin % kNormChunk);
  const int first = group * static_cast<int>(kNormChunk);
  const int skip = part.number == 0 && group == 0 ? before : 0;
  const int left = part.size - first;
  const int size = (left < kNormChunk ? left : static_cast<int>(kNormChunk)) - skip;
  const T* g = grads + part.begin - before + first + skip;
  double sum[kVector] = {};
  if (size > 0) {
    const int whole = size / kNormSums * kNormSums;
    if (aligned_to(g, 16)) {
#pragma unroll 8
      for (int i = lane; i < whole; i += kNormSums) {
        double x[kVector];
        accrue::cuda::load<kVector>(g + i, x);
#pragma unroll
        for (int k = 0; k < kVector; ++k) sum[k] += x[k] * x[k];
      }
    } else {
      for (int i = lane; i < whole; i += kNormSums) {
#pragma unroll
        for (int k = 0; k < kVector; ++k)
          sum[k] += static_cast<double>(g[i + k]) * static_cast<double>(g[i + k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const int i = whole + lane + k;
      if (i < size) sum[k] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
    }
  }
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
#pragma unroll
    for (int width = kGroup / 2; width > 0; width /= 2)
      sum[k] += __shfl_xor_sync(kFullMask, sum[k], width);
  }
#pragma unroll
  for (int width = kVector / 2; width > 0; width /= 2) {
#pragma unroll
    for (int k = 0; k < width; ++k) sum[k] += sum[k + width];
  }
  if (lane == 0 && size > 0) sums[part.tag + part.number * kChunks + group] = sum[0];
}

struct CosPi {
  __host__ __device__ double operator()(double t) const { return cospi(t); }
};
__device__ __forceinline__ bool finite(double v) {
  constexpr double kMost = std::numeric_limits<double>::max();
  return v >= -kMost && v <= kMost;
}

// One block.
__global__ void __launch_bounds__(kNormLanes)
    finish(const double* sums, std::int64_t pieces, StepState* state) {
  accrue::cuda::wait_for_earlier_kernels();
  ACCRUE_SHARED(double, lanes, [kNormLanes]);
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
#pragma unroll 8
  for (std::int64_t c = thread; c < pieces; c += kNormLanes) sum += sums[c];
  lanes[thread] = sum;
  for (int width = kNormLanes / 2; width > 0; width /= 2) {
    __syncthreads();
    if (thread < width) lanes[thread] += lanes[thread + width];
  }
  if (thread != 0) return;
  const double squares = lanes[0];
  StepState& s = *state;
  const bool counts = s.weight > 0 && finite(s.weight);
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const double norm = counts ? std::sqrt(squares) / s.weight : kNone;
  const bool skip = !counts || !finite(squares) || !finite(s.loss_sum);
  const double clip = s.max_norm > 0 ? s.max_norm / (norm + 1e-6) : 1.0;
  s.loss = counts ? s.loss_sum / s.weight : kNone;
  s.norm = norm;
  s.lr = s.schedule.at(s.step, CosPi{});
  s.skip = skip;
  s.scale = skip ? 0.0 : (clip < 1.0 ? clip : 1.0) / s.weight;
  ++(skip ? s.skipped : s.step);
}
}  // namespace

void square_sums(Stream stream, const SquareSums& a) {
  // The batch takes a segment from the cut before it on, and blocks find its beginning by offset.
  thread_local std::vector<Segment> from_cuts;
  from_cuts.assign(a.segments.begin(), a.segments.end());
  for (Segment& s : from_cuts)
    if (s.size > 0) s.size += s.offset % kNormChunk;
  auto* sums = static_cast<double*>(a.sums.ptr);
  std::int64_t pieces = 0;
  const auto first_piece = [&](const Segment& s) {
    const std::int64_t first = pieces;
    pieces += chunk_count(s.size, kNormChunk);
    return first;
  };
  const auto run = [&]<class T>() {
    for_each_batch(from_cuts, kPerBlock, first_piece, [&](const SegmentBatch& batch, dim3 grid) {
      accrue::cuda::launch_early(sum_pieces<T>, grid, dim3(kThreads), 0, stream, batch,
                                 a.grads.data<T>(), sums);
    });
  };
  if (a.grads.dtype == DType::kF64)
    run.template operator()<double>();
  else
    run.template operator()<float>();
}

void global_norm(Stream stream, const GlobalNorm& a) {
  accrue::cuda::launch_early(finish, dim3(1), dim3(kNormLanes), 0, stream,
                             static_cast<const double*>(a.sums.ptr), a.sums.shape.numel(), a.state);
}
}  // namespace accrue::kernels::cuda

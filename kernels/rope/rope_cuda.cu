#include <algorithm>
#include <cmath>
#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/sink.cuh>
#include <accrue/kernels/rope/rope.h>

namespace accrue::kernels::cuda {
namespace {
using accrue::cuda::DeviceSink;
using accrue::cuda::kPack;

constexpr int kThreads = 256;
constexpr int kHeads = 4;    // that share a thread's sines and cosines
constexpr int kPairs = 128;  // of one launch: their frequencies are arguments

struct Frequencies {
  double of[kPairs];
};

struct Rotation {
  std::int64_t rows, times, first_position;
  int heads, head_dim;
  int first_pair, pairs;  // of this launch
  int head_lanes;         // threads that share a position's heads
  int rows_per_block;
};

__device__ __forceinline__ void sin_cos_pi(float t, float& s, float& c) { sincospif(t, &s, &c); }
__device__ __forceinline__ void sin_cos_pi(double t, double& s, double& c) { sincospi(t, &s, &c); }

// The angle is that of the table on the CPU. It is reduced to a quarter turn in float64, with pi
// to 106 bits, so that nothing is lost before C.
template <class C>
__device__ __forceinline__ void sin_cos(double angle, C& sine, C& cosine) {
  constexpr double kInverse = 0x1.45f306dc9c883p-2, kRest = -0x1.6b01ec5417056p-56;
  const double high = __dmul_rn(angle, kInverse);
  const double low = fma(angle, kInverse, -high) + angle * kRest;
  const double turned = high - 2 * rint(0.5 * high);
  const double quarters = rint(2 * turned);
  C s, c;
  sin_cos_pi(static_cast<C>(turned - 0.5 * quarters + low), s, c);
  const int quadrant = static_cast<int>(quarters) & 3;
  sine = quadrant % 2 ? c : s;
  cosine = quadrant % 2 ? s : c;
  if (quadrant >= 2) sine = -sine;
  if (quadrant == 1 || quadrant == 2) cosine = -cosine;
}

// Pairs of a thread: as many as 16 bytes hold, or one, which may lie anywhere.
struct Aligned {
  template <class T>
  static constexpr int kWidth = kPack<T>;
};
struct Ragged {
  template <class T>
  static constexpr int kWidth = 1;
};

// kV pairs of neighbours, in one run of 2 kV elements or in two of kV. kV 1 needs no alignment.
template <int kV, bool kInterleaved, class T, class G>
__device__ __forceinline__ void rotate_pairs(const T* x, const DeviceSink<G>& out, std::int64_t at,
                                             int half, const accumulate_t<T> (&sine)[kV],
                                             const accumulate_t<T> (&cosine)[kV]) {
  using C = accumulate_t<T>;
  constexpr int kRun = kInterleaved && kV > 1 ? 2 * kV : kV, kRuns = 2 * kV / kRun;
  const int next = kInterleaved ? kRun : half;
  C v[kRuns][kRun], y[kRuns][kRun];
#pragma unroll
  for (int i = 0; i < kRuns; ++i) accrue::cuda::load<kRun>(x + at + i * next, v[i]);
#pragma unroll
  for (int k = 0; k < kV; ++k) {
    const int first = kRuns == 1 ? 2 * k : k, second = kRuns == 1 ? 2 * k + 1 : k;
    const C a = v[0][first], b = v[kRuns - 1][second];
    y[0][first] = a * cosine[k] - b * sine[k];
    y[kRuns - 1][second] = b * cosine[k] + a * sine[k];
  }
#pragma unroll
  for (int i = 0; i < kRuns; ++i) out.template put<kRun>(at + i * next, y[i]);
}

template <class Access, bool kInterleaved, class T, class G>
__global__ void __launch_bounds__(kThreads)
    rotate(Frequencies frequencies, Rotation r, accumulate_t<T> sign, const T* x,
           DeviceSink<G> out) {
  accrue::cuda::wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  constexpr int kV = Access::template kWidth<T>;
  const int groups = r.pairs / kV, units = groups * r.head_lanes;
  for (int item = static_cast<int>(threadIdx.x); item < r.rows_per_block * units;
       item += kThreads) {
    const int unit = item % units, group = unit % groups, first_head = unit / groups;
    const std::int64_t row =
        static_cast<std::int64_t>(blockIdx.x) * r.rows_per_block + item / units;
    if (row >= r.rows) return;
    const double position = static_cast<double>(r.first_position + row % r.times);
    C sine[kV], cosine[kV];
#pragma unroll
    for (int k = 0; k < kV; ++k) {
      sin_cos(position * frequencies.of[group * kV + k], sine[k], cosine[k]);
      sine[k] *= sign;
    }
    const int pair = r.first_pair + group * kV;
    for (int head = first_head; head < r.heads; head += r.head_lanes)
      rotate_pairs<kV, kInterleaved>(
          x, out, (row * r.heads + head) * r.head_dim + (kInterleaved ? 2 * pair : pair),
          r.head_dim / 2, sine, cosine);
  }
}

template <class T, class G>
void run(Stream stream, const T* x, const Shape& shape, const RopeOptions& options, int sign,
         const DeviceSink<G>& out) {
  using C = accumulate_t<T>;
  if (shape.numel() == 0) return;
  constexpr std::int64_t kMostHeads = 1 << 25, kMostNumbers = 1 << 30;
  ACCRUE_CHECK_SHAPE(shape[2] <= kMostHeads && shape[3] <= kMostNumbers,
                     "rope: on cuda at most 2^25 heads of 2^30 numbers, got ", shape);
  const std::int64_t half = shape[3] / 2;
  const bool aligned =
      half % kPack<T> == 0 && accrue::cuda::is_aligned(x) && accrue::cuda::is_aligned(out.dst);
  const int per_thread = aligned ? kPack<T> : 1;
  const auto kernel = options.interleaved
                          ? (aligned ? rotate<Aligned, true, T, G> : rotate<Ragged, true, T, G>)
                          : (aligned ? rotate<Aligned, false, T, G> : rotate<Ragged, false, T, G>);
  for (std::int64_t first = 0; first < half; first += kPairs) {
    Rotation r{.rows = shape[0] * shape[1],
               .times = shape[1],
               .first_position = options.first_position,
               .heads = static_cast<int>(shape[2]),
               .head_dim = static_cast<int>(shape[3]),
               .first_pair = static_cast<int>(first),
               .pairs = static_cast<int>(std::min<std::int64_t>(kPairs, half - first)),
               .head_lanes = static_cast<int>((shape[2] + kHeads - 1) / kHeads),
               .rows_per_block = 1};
    r.rows_per_block = std::max(1, kThreads / (r.pairs / per_thread * r.head_lanes));
    Frequencies frequencies{};
    for (int i = 0; i < r.pairs; ++i)
      frequencies.of[i] = std::pow(
          options.base, -2.0 * static_cast<double>(first + i) / static_cast<double>(shape[3]));
    accrue::cuda::launch_early(kernel, dim3(accrue::cuda::blocks_for(r.rows, r.rows_per_block)),
                               dim3(kThreads), 0, stream, frequencies, r, static_cast<C>(sign), x,
                               out);
  }
}
}  // namespace

void rope_forward(Stream stream, const RopeForward& a) {
  visit_float(a.x.dtype, [&]<class T>() {
    run(stream, a.x.data<T>(), a.x.shape, a.options, 1, DeviceSink<T>(GradSink{a.y}));
  });
}

void rope_backward(Stream stream, const RopeBackward& a) {
  if (!a.dx) return;
  visit_float(a.dy.dtype, [&]<class T>() {
    accrue::cuda::visit_sink<T>(a.dx, [&]<class G>() {
      run(stream, a.dy.data<T>(), a.dy.shape, a.options, -1, DeviceSink<G>(a.dx));
    });
  });
}
}  // namespace accrue::kernels::cuda

#include <algorithm>
#include <accrue/core/parallel.h>
#include <accrue/kernels/global_norm/global_norm.h>
#if ACCRUE_ISA > 0
  #include <immintrin.h>
#endif
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/load_double.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
constexpr std::int64_t kNormGrain = 32;  // chunks

template <std::size_t kN>
double add_halves(double (&lanes)[kN]) {
  for (std::size_t width = kN / 2; width > 0; width /= 2)
    for (std::size_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

template <class T>
double square_sum(const T* g, std::int64_t n) {
  constexpr int kVectors = kNormSums / kLanes<double>;
  Vec<double> sum[kVectors] = {};
  std::int64_t i = 0;
  for (; i + kNormSums <= n; i += kNormSums)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const Vec<double> x = load_double(g + i + v * kLanes<double>);
      sum[v] += x * x;
    }
  double lanes[kNormSums];
  std::memcpy(lanes, sum, sizeof lanes);
  for (int j = 0; i < n; ++i, ++j)
    lanes[j] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  return add_halves(lanes);
}

template <class T>
void sum_pieces(const SquareSums& a) {
  const T* g = a.grads.data<T>();
  double* sums = a.sums.data<double>();
  parallel_for(norm_pieces(a.segments), kNormGrain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t first = 0;  // the number of the segment's first piece
    for (const Segment& s : a.segments) {
      if (first >= end) break;
      const std::int64_t after = first + norm_pieces(s);
      for (std::int64_t c = std::max(begin, first); c < std::min(end, after); ++c) {
        const std::int64_t cut = (s.offset / kNormChunk + c - first) * kNormChunk;
        const std::int64_t from = std::max(s.offset, cut);
        sums[c] = square_sum(g + from, std::min(s.offset + s.size, cut + kNormChunk) - from);
      }
      first = after;
    }
  });
}
}  // namespace

void square_sums(Stream, const SquareSums& a) {
  if (a.grads.dtype == DType::kF64)
    sum_pieces<double>(a);
  else
    sum_pieces<float>(a);
}

void global_norm(Stream, const GlobalNorm& a) {
  const double* sums = a.sums.data<double>();
  double lanes[kNormLanes] = {};
  for (std::int64_t c = 0, n = a.sums.shape.numel(); c < n; ++c) lanes[c % kNormLanes] += sums[c];
  const double squares = add_halves(lanes);
  StepState& s = *a.state;
  const bool counts = s.weight > 0 && std::isfinite(s.weight);
  const double none = std::numeric_limits<double>::quiet_NaN();
  s.loss = counts ? s.loss_sum / s.weight : none;
  s.norm = counts ? std::sqrt(squares) / s.weight : none;
  s.lr = s.schedule.at(s.step);
  s.skip = !counts || !std::isfinite(squares) || !std::isfinite(s.loss_sum);
  const double clip = s.max_norm > 0 ? std::min(1.0, s.max_norm / (s.norm + 1e-6)) : 1.0;
  s.scale = s.skip ? 0.0 : clip / s.weight;
  ++(s.skip ? s.skipped : s.step);
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

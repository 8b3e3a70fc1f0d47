#pragma once
// Forward passes of layer normalisation (kCentered) and root mean square normalisation. The
// formulas are those of layer_norm.h and rms_norm.h; `rest` is the correction of the mean. With f
// the row is x + f, rounded to T; it goes to `sum` and stays in registers where rows do.
#include <accrue/kernels/cuda/rows.cuh>

namespace accrue::kernels::cuda {

template <class T>
struct NormForward {
  using Real = accumulate_t<T>;
  const T *x, *f, *weight, *bias;  // f and bias may be null
  T *sum, *y;                      // sum only with f
  Real *mean, *rstd;               // mean only when centered
  std::int64_t rows;
  int cols;
  Real eps;
};

namespace norm {
template <bool kCentered, bool kSum, class Row>
__device__ __forceinline__ void forward(const NormForward<typename Row::Element>& a) {
  using T = typename Row::Element;
  using Real = typename Row::Real;
  constexpr int kThreads = Row::kThreads, kN = Row::kN;
  ACCRUE_SHARED(Real, scratch, [2][kRowScratch<kThreads>]);
  const std::int64_t row = row_of_thread<kThreads>();
  const int lane = lane_of_row<kThreads>();
  const bool active = row < a.rows;
  const std::int64_t base = active ? row * a.cols : 0;
  const int cols = active ? a.cols : 0;
  const Row x = kSum ? Row::of_sum(a.x + base, a.f + base, a.sum + base, cols, lane)
                     : Row({a.x + base}, cols, lane);
  const Real count = static_cast<Real>(a.cols);
  Real mean = 0, rest = 0, variance = 0;
  if constexpr (kCentered) {
    Real s[1] = {};
    x.each([&](int, int, const Real(&v)[1][kN]) {
#pragma unroll
      for (int k = 0; k < kN; ++k) s[0] += v[0][k];
    });
    row_sums<kThreads>(s, scratch);
    mean = s[0] / count;
  }
  Real s[2] = {};
  x.each([&](int, int, const Real(&v)[1][kN]) {
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      const Real d = v[0][k] - mean;
      if (kCentered) s[0] += d;
      s[1] += d * d;
    }
  });
  row_sums<kThreads>(s, scratch);
  variance = s[1] / count;
  if constexpr (kCentered) {
    rest = s[0] / count;
    variance -= rest * rest;
    if (variance < 0) variance = 0;
  }
  const Real rstd = Real(1) / sqrt(variance + a.eps);
  if (active && lane == 0) {
    if constexpr (kCentered) a.mean[row] = mean + rest;
    a.rstd[row] = rstd;
  }
  T* const y = a.y + base;
  x.each([&](int, int i, const Real(&v)[1][kN]) {
    Real out[kN], weight[kN], bias[kN] = {};
    load<kN>(a.weight + i, weight);
    if (kCentered && a.bias) load<kN>(a.bias + i, bias);
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      const Real xhat = ((v[0][k] - mean) - rest) * rstd;
      out[k] = kCentered ? xhat * weight[k] + bias[k] : xhat * weight[k];
    }
    store<kN>(y + i, out);
  });
}

template <bool kCentered, bool kSum, class T, int kThreads, int kElements>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>) norm_forward(const NormForward<T> a) {
  wait_for_earlier_kernels();
  forward<kCentered, kSum, RegisterRow<T, kThreads, kElements>>(a);
}
template <bool kCentered, bool kSum, class T, int kThreads>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>, 2)
    norm_forward_long(const NormForward<T> a) {
  wait_for_earlier_kernels();
  forward<kCentered, kSum, StreamedRow<T, kThreads, kPack<T>>>(a);
}
template <bool kCentered, bool kSum, class T, int kThreads>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>, 2)
    norm_forward_ragged(const NormForward<T> a) {
  wait_for_earlier_kernels();
  forward<kCentered, kSum, StreamedRow<T, kThreads, 1>>(a);
}
template <bool kCentered, bool kSum, class T>
void launch(Stream stream, const NormForward<T>& a) {
  const bool aligned = rows_aligned(a.x, a.cols, sizeof(T)) && is_aligned(a.f) &&
                       is_aligned(a.sum) && is_aligned(a.y) && is_aligned(a.weight) &&
                       is_aligned(a.bias);
  if constexpr (!std::is_same_v<T, double>) {
    if (aligned && visit_row_class<64>(a.cols, [&]<int kThreads, int kElements>() {
          launch_rows<kThreads>(stream, norm_forward<kCentered, kSum, T, kThreads, kElements>, a);
        }))
      return;
  }
  if (a.cols <= kWarpColumns)
    launch_rows<kWarp>(stream,
                       aligned ? norm_forward_long<kCentered, kSum, T, kWarp>
                               : norm_forward_ragged<kCentered, kSum, T, kWarp>,
                       a);
  else
    launch_rows<kWideRow>(stream,
                          aligned ? norm_forward_long<kCentered, kSum, T, kWideRow>
                                  : norm_forward_ragged<kCentered, kSum, T, kWideRow>,
                          a);
}
}  // namespace norm

/// y, the statistics and, with f, the sum.
template <bool kCentered, class T>
void launch_norm_forward(Stream stream, const NormForward<T>& a) {
  if (a.f)
    norm::launch<kCentered, true>(stream, a);
  else
    norm::launch<kCentered, false>(stream, a);
}
}  // namespace accrue::kernels::cuda

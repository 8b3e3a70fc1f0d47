#pragma once
// Backward passes of layer normalisation (kCentered) and root mean square normalisation. Blocks own
// runs of rows and leave one partial row each, which a second kernel adds in order.
#include <accrue/kernels/cuda/rows.cuh>
#include <accrue/kernels/rows.h>

namespace accrue::kernels::cuda {

/// G: the type of dx.
template <class T, class G>
struct NormBackward {
  using Real = accumulate_t<T>;
  const T *dy, *x, *weight;
  const Real *mean, *rstd;  // mean only when centered
  DeviceSink<G> dx;         // may be empty
  Real* partials;           // (blocks, 2 or 1, cols), or null
  std::int64_t rows, block_rows;
  int cols;
};

namespace norm {
/// The part of one row in the gradients: dx is written, add(j, i, dy xhat, dy) gets the rest.
template <bool kCentered, class Row, class G, class Scratch, class Add>
__device__ __forceinline__ void backward_row(const NormBackward<typename Row::Element, G>& a,
                                             std::int64_t row, int lane, Scratch& scratch,
                                             Add add) {
  using Real = typename Row::Real;
  constexpr int kThreads = Row::kThreads, kN = Row::kN;
  const std::int64_t base = row * a.cols;
  const Row both({a.dy + base, a.x + base}, a.cols, lane);
  const Real count = static_cast<Real>(a.cols);
  const Real mean = kCentered ? a.mean[row] : Real(0), rstd = a.rstd[row];
  constexpr int kSums = kCentered ? 3 : 1;
  Real s[kSums] = {};
  both.each([&](int, int i, const Real(&v)[2][kN]) {
    Real weight[kN];
    load<kN>(a.weight + i, weight);
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      const Real d = v[1][k] - mean, g = v[0][k] * weight[k];
      s[0] += g * d;
      if constexpr (kCentered) {
        s[1] += g;
        s[2] += d;
      }
    }
  });
  row_sums<kThreads>(s, scratch);
  Real rest = 0, g_mean = 0, gx = s[0];
  if constexpr (kCentered) {
    rest = s[2] / count;
    g_mean = s[1] / count;
    gx -= rest * s[1];
  }
  const Real gx_mean = rstd * gx / count;
  both.each([&](int j, int i, const Real(&v)[2][kN]) {
    Real xhat[kN], product[kN];
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      xhat[k] = ((v[1][k] - mean) - rest) * rstd;
      product[k] = v[0][k] * xhat[k];
    }
    if (a.dx.dst) {
      Real weight[kN], out[kN];
      load<kN>(a.weight + i, weight);
#pragma unroll
      for (int k = 0; k < kN; ++k)
        out[k] = rstd * (v[0][k] * weight[k] - g_mean - xhat[k] * gx_mean);
      a.dx.template put<kN>(base + i, out);
    }
    add(j, i, product, v[0]);
  });
}

/// Threads of a block. Two blocks of 256 fill a multiprocessor; where 128 registers are too few for
/// a thread, one of 384.
template <int kThreads, int kElements>
inline constexpr int kBackwardThreads = kThreads > kWarp ? kThreads
                                                         : (kElements > 24 ? 384 : kRowBlock);

/// One block, one partial row: the rows [block * block_rows, ...), their sums in registers.
template <bool kCentered, int kBlock, class Row, class G>
__device__ __forceinline__ void backward_registers(
    const NormBackward<typename Row::Element, G>& a) {
  using Real = typename Row::Real;
  constexpr int kThreads = Row::kThreads, kN = Row::kN, kGroups = kBlock / kThreads;
  constexpr int kSets = kCentered ? 2 : 1;
  ACCRUE_SHARED(Real, scratch, [3][kRowScratch<kThreads>]);
  const int lane = lane_of_row<kThreads>();
  const int group = static_cast<int>(threadIdx.x) / kThreads;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * a.block_rows;
  const std::int64_t end = begin + a.block_rows < a.rows ? begin + a.block_rows : a.rows;
  Real sums[kSets][Row::kCalls][kN] = {};
  for (std::int64_t row = begin + group; row < end; row += kGroups)
    backward_row<kCentered, Row, G>(
        a, row, lane, scratch, [&](int j, int, const Real(&dweight)[kN], const Real(&dbias)[kN]) {
#pragma unroll
          for (int k = 0; k < kN; ++k) {
            sums[0][j][k] += dweight[k];
            if constexpr (kCentered) sums[1][j][k] += dbias[k];
          }
        });
  if (!a.partials) return;
  Real* const partial = a.partials + static_cast<std::int64_t>(blockIdx.x) * kSets * a.cols;
  if constexpr (kGroups == 1) {
#pragma unroll
    for (int t = 0; t < kSets; ++t)
#pragma unroll
      for (int j = 0; j < Row::kCalls; ++j) {
        const int i = (j * kThreads + lane) * kN;
        if (i < a.cols) store<kN>(partial + t * a.cols + i, sums[t][j]);
      }
  } else {
    // One warp after the other adds its sums to those before it.
    ACCRUE_SHARED(Real, all, [kSets][Row::kCalls][kThreads * kN]);
    for (int g = 0; g < kGroups; ++g) {
      if (g == group) {
#pragma unroll
        for (int t = 0; t < kSets; ++t)
#pragma unroll
          for (int j = 0; j < Row::kCalls; ++j) {
            Real v[kN];
            if (g > 0) {
              load<kN>(&all[t][j][lane * kN], v);
#pragma unroll
              for (int k = 0; k < kN; ++k) v[k] += sums[t][j][k];
              store<kN>(&all[t][j][lane * kN], v);
            } else {
              store<kN>(&all[t][j][lane * kN], sums[t][j]);
            }
          }
      }
      __syncthreads();
    }
    for (int i = static_cast<int>(threadIdx.x) * kN; i < kSets * Row::kCalls * kThreads * kN;
         i += kBlock * kN) {
      constexpr int kWidth = Row::kCalls * kThreads * kN;
      const int set = i / kWidth, column = i % kWidth;
      if (column >= a.cols) continue;
      Real v[kN];
      load<kN>(&all[0][0][0] + i, v);
      store<kN>(partial + set * a.cols + column, v);
    }
  }
}

/// The same for rows of any length: the sums grow in the partial row itself, each element by one
/// thread.
template <bool kCentered, class Row, class G>
__device__ __forceinline__ void backward_streamed(const NormBackward<typename Row::Element, G>& a) {
  using Real = typename Row::Real;
  constexpr int kThreads = Row::kThreads, kN = Row::kN;
  constexpr int kSets = kCentered ? 2 : 1;
  ACCRUE_SHARED(Real, scratch, [3][kRowScratch<kThreads>]);
  const int lane = lane_of_row<kThreads>();
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * a.block_rows;
  const std::int64_t end = begin + a.block_rows < a.rows ? begin + a.block_rows : a.rows;
  Real* const partial =
      a.partials ? a.partials + static_cast<std::int64_t>(blockIdx.x) * kSets * a.cols : nullptr;
  for (std::int64_t row = begin; row < end; ++row) {
    const bool first = row == begin;
    backward_row<kCentered, Row, G>(
        a, row, lane, scratch, [&](int, int i, const Real(&dweight)[kN], const Real(&dbias)[kN]) {
          if (!partial) return;
          const auto grow = [&](Real* p, const Real(&v)[kN]) {
            Real sum[kN] = {};
            if (!first) load<kN>(p, sum);
#pragma unroll
            for (int k = 0; k < kN; ++k) sum[k] += v[k];
            store<kN>(p, sum);
          };
          grow(partial + i, dweight);
          if constexpr (kCentered) grow(partial + a.cols + i, dbias);
        });
  }
}

template <bool kCentered, class T, class G, int kThreads, int kElements>
__global__ void __launch_bounds__((kBackwardThreads<kThreads, kElements>),
                                  (kBackwardThreads<kThreads, kElements> > kRowBlock ? 1 : 2))
    norm_backward(const NormBackward<T, G> a) {
  wait_for_earlier_kernels();
  backward_registers<kCentered, kBackwardThreads<kThreads, kElements>,
                     RegisterRow<T, kThreads, kElements, 2>, G>(a);
}
template <bool kCentered, class T, class G>
__global__ void __launch_bounds__(kRowBlock, 4) norm_backward_long(const NormBackward<T, G> a) {
  wait_for_earlier_kernels();
  backward_streamed<kCentered, StreamedRow<T, kRowBlock, kPack<T>, 2>, G>(a);
}
template <bool kCentered, class T, class G>
__global__ void __launch_bounds__(kRowBlock, 4) norm_backward_ragged(const NormBackward<T, G> a) {
  wait_for_earlier_kernels();
  backward_streamed<kCentered, StreamedRow<T, kRowBlock, 1, 2>, G>(a);
}

// Adds the partial rows: a block has 32 columns, each of its warps every kSumWarps-th partial row,
// then the warps in order. Both sinks may be one tensor: the thread of a column writes them one
// after the other.
inline constexpr int kSumWarps = 16;
template <class Real, class W, class B>
__global__ void __launch_bounds__(kSumWarps* kWarp)
    norm_add_partials(const Real* partials, int count, int sets, int cols, DeviceSink<W> dweight,
                      DeviceSink<B> dbias) {
  wait_for_earlier_kernels();
  ACCRUE_SHARED(Real, sums, [2][kSumWarps][kWarp]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int column = static_cast<int>(blockIdx.x) * kWarp + lane;
  for (int t = 0; t < sets; ++t) {
    Real sum = 0;
    if (column < cols) {
      const Real* const from = partials + static_cast<std::int64_t>(t) * cols + column;
#pragma unroll 4
      for (int p = warp; p < count; p += kSumWarps)
        sum += from[static_cast<std::int64_t>(p) * sets * cols];
    }
    sums[t][warp][lane] = sum;
  }
  __syncthreads();
  if (warp > 0 || column >= cols) return;
  for (int t = 0; t < sets; ++t) {
    Real total = sums[t][0][lane];
#pragma unroll
    for (int w = 1; w < kSumWarps; ++w) total += sums[t][w][lane];
    if (t == 0 && dweight.dst) dweight.put(column, total);
    if (t == 1 && dbias.dst) dbias.put(column, total);
  }
}
}  // namespace norm

/// Columns up to 8192 whose gradients norm_backward keeps in registers. A warp per row would spill
/// above 1024.
template <class F>
bool visit_norm_backward_class(std::int64_t cols, F f) {
  const auto is = [&]<int kThreads, int kElements>() {
    if (cols > kThreads * kElements) return false;
    f.template operator()<kThreads, kElements>();
    return true;
  };
  return is.template operator()<32, 8>() || is.template operator()<32, 16>() ||
         is.template operator()<32, 24>() || is.template operator()<32, 32>() ||
         is.template operator()<256, 8>() || is.template operator()<256, 16>() ||
         is.template operator()<512, 16>();
}

/// dx and the partial rows of the others; then dweight and dbias (either may be empty).
template <bool kCentered, class T>
void launch_norm_backward(Stream stream, const ConstView& dy, const ConstView& x,
                          const ConstView& weight, const ConstView& mean, const ConstView& rstd,
                          const GradSink& dx, const GradSink& dweight, const GradSink& dbias,
                          const View& partials) {
  using Real = accumulate_t<T>;
  const std::int64_t rows = x.shape.rows(), cols = x.shape.cols();
  if (cols == 0) return;
  const bool sums = dweight || dbias;
  const std::int64_t block_rows = device_partial_rows(rows);
  const dim3 grid(blocks_for(rows, block_rows));
  visit_sink<T>(dx, [&]<class G>() {
    const NormBackward<T, G> a{.dy = dy.data<T>(),
                               .x = x.data<T>(),
                               .weight = weight.data<T>(),
                               .mean = kCentered ? mean.data<Real>() : nullptr,
                               .rstd = rstd.data<Real>(),
                               .dx = DeviceSink<G>(dx),
                               .partials = sums ? partials.data<Real>() : nullptr,
                               .rows = rows,
                               .block_rows = block_rows,
                               .cols = row_columns(cols)};
    const bool aligned = rows_aligned(a.x, cols, sizeof(T)) && is_aligned(a.dy) &&
                         is_aligned(a.weight) && is_aligned(a.dx.dst) && is_aligned(a.partials);
    if constexpr (!std::is_same_v<T, double>) {
      if (aligned && visit_norm_backward_class(cols, [&]<int kThreads, int kElements>() {
            launch_early(norm::norm_backward<kCentered, T, G, kThreads, kElements>, grid,
                         dim3(norm::kBackwardThreads<kThreads, kElements>), 0, stream, a);
          }))
        return;
    }
    launch_early(aligned ? norm::norm_backward_long<kCentered, T, G>
                         : norm::norm_backward_ragged<kCentered, T, G>,
                 grid, dim3(kRowBlock), 0, stream, a);
  });
  if (!sums) return;
  visit_sink<T>(dweight, [&]<class W>() {
    visit_sink<T>(dbias, [&]<class B>() {
      launch_early(norm::norm_add_partials<Real, W, B>, dim3(blocks_for(cols, kWarp)),
                   dim3(norm::kSumWarps * kWarp), 0, stream,
                   rows > 0 ? partials.data<Real>() : nullptr, static_cast<int>(grid.x),
                   kCentered ? 2 : 1, static_cast<int>(cols), DeviceSink<W>(dweight),
                   DeviceSink<B>(dbias));
    });
  });
}
}  // namespace accrue::kernels::cuda

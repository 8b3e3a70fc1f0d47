#include <accrue/kernels/layer_norm/layer_norm.h>
#include <accrue/kernels/rows.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/rows.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
template <class T>
void forward(const LayerNormForward& a) {
  using C = accumulate_t<T>;
  const std::int64_t cols = a.x.shape.cols();
  const C count = static_cast<C>(cols), eps = static_cast<C>(a.eps);
  const T* all_x = a.x.data<T>();
  const T* weight = a.weight.data<T>();
  const T* bias = a.bias ? a.bias.data<T>() : nullptr;
  const T* all_f = a.f ? a.f.data<T>() : nullptr;
  T *all_y = a.y.data<T>(), *all_sum = a.f ? a.sum.data<T>() : nullptr;
  C *means = a.mean.data<C>(), *rstds = a.rstd.data<C>();
  for_rows(a.x.shape.rows(), cols, [&](std::int64_t row) {
    const std::int64_t base = row_offset(row, cols);
    const T* x = all_x + base;
    if (all_f) x = add_rows(x, all_f + base, all_sum + base, cols);
    T* y = all_y + base;
    const C mean =
        sum_row<C>(cols, [&](std::int64_t i, auto part) { return load<C>(x + i, part); }) / count;
    const auto sums = sum_rows<C, 2>(cols, [&](std::int64_t i, auto part) {
      const Vec<C> d = load<C>(x + i, part) - mean;
      return Several<Vec<C>, 2>{{d, d * d}};
    });
    const C rest = sums.v[0] / count;  // what rounding left out of the mean
    const C variance = sums.v[1] / count - rest * rest;
    const C rstd = C(1) / std::sqrt((variance < 0 ? C(0) : variance) + eps);
    means[row] = mean + rest;
    rstds[row] = rstd;
    const auto normalised = [&](std::int64_t i, auto part) {
      return ((load<C>(x + i, part) - mean) - rest) * rstd * load<C>(weight + i, part);
    };
    if (bias)
      vector_loop<C>(cols, [&](std::int64_t i, auto part) {
        store(y + i, normalised(i, part) + load<C>(bias + i, part), part);
      });
    else
      vector_loop<C>(cols,
                     [&](std::int64_t i, auto part) { store(y + i, normalised(i, part), part); });
  });
}

template <class T, class G>
void backward(const LayerNormBackward& a) {
  using C = accumulate_t<T>;
  const std::int64_t rows = a.x.shape.rows(), cols = a.x.shape.cols();
  const std::int64_t grain = partial_rows(rows, cols);
  const C count = static_cast<C>(cols);
  const T *all_dy = a.dy.data<T>(), *all_x = a.x.data<T>(), *weight = a.weight.data<T>();
  const C *means = a.mean.data<C>(), *rstds = a.rstd.data<C>();
  const SinkWriter<G, C> dx(a.dx);
  const bool sums = a.dweight || a.dbias;
  C* partials = sums ? a.partials.data<C>() : nullptr;
  parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    C* dweight = sums ? partials + begin / grain * 2 * cols : nullptr;
    C* dbias = sums ? dweight + cols : nullptr;
    if (sums) std::memset(dweight, 0, static_cast<std::size_t>(2 * cols) * sizeof(C));
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t base = row_offset(row, cols);
      const T *dy = all_dy + base, *x = all_x + base;
      const C mean = means[row], rstd = rstds[row];
      const auto s = sum_rows<C, 3>(cols, [&](std::int64_t i, auto part) {
        const Vec<C> d = load<C>(x + i, part) - mean;
        const Vec<C> g = load<C>(dy + i, part) * load<C>(weight + i, part);
        return Several<Vec<C>, 3>{{g, g * d, d}};
      });
      const C rest = s.v[2] / count;
      const C g_mean = s.v[0] / count;
      const C gx_mean = rstd * (s.v[1] - rest * s.v[0]) / count;
      vector_loop<C>(cols, [&](std::int64_t i, auto part) {
        const Vec<C> xhat = ((load<C>(x + i, part) - mean) - rest) * rstd;
        const Vec<C> grad = load<C>(dy + i, part);
        if (sums) {
          store(dweight + i, load<C>(dweight + i, part) + grad * xhat, part);
          store(dbias + i, load<C>(dbias + i, part) + grad, part);
        }
        if (dx) {
          const Vec<C> g = grad * load<C>(weight + i, part);
          dx.put(base + i, rstd * (g - g_mean - xhat * gx_mean), part);
        }
      });
    }
  });
  if (!sums) return;
  const std::int64_t chunks = chunk_count(rows, grain);
  reduce_partials<T>(partials, chunks, 2 * cols, cols, a.dweight);
  reduce_partials<T>(partials + cols, chunks, 2 * cols, cols, a.dbias);
}
}  // namespace

void layer_norm_forward(Stream, const LayerNormForward& a) {
  visit_float(a.x.dtype, [&]<class T>() { forward<T>(a); });
}

void layer_norm_backward(Stream, const LayerNormBackward& a) {
  if (!a.dx && !a.dweight && !a.dbias) return;
  visit_float(a.x.dtype,
              [&]<class T>() { visit_sink<T>(a.dx, [&]<class G>() { backward<T, G>(a); }); });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

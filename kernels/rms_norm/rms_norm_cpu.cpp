#include <accrue/kernels/rms_norm/rms_norm.h>
#include <accrue/kernels/rows.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/rows.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
template <class T>
void forward(const RmsNormForward& a) {
  using C = accumulate_t<T>;
  const std::int64_t cols = a.x.shape.cols();
  const C count = static_cast<C>(cols), eps = static_cast<C>(a.eps);
  const T *all_x = a.x.data<T>(), *weight = a.weight.data<T>();
  const T* all_f = a.f ? a.f.data<T>() : nullptr;
  T *all_y = a.y.data<T>(), *all_sum = a.f ? a.sum.data<T>() : nullptr;
  C* rstds = a.rstd.data<C>();
  for_rows(a.x.shape.rows(), cols, [&](std::int64_t row) {
    const std::int64_t base = row_offset(row, cols);
    const T* x = all_x + base;
    if (all_f) x = add_rows(x, all_f + base, all_sum + base, cols);
    T* y = all_y + base;
    const C squares = sum_row<C>(cols, [&](std::int64_t i, auto part) {
      const Vec<C> v = load<C>(x + i, part);
      return v * v;
    });
    const C rstd = C(1) / std::sqrt(squares / count + eps);
    rstds[row] = rstd;
    vector_loop<C>(cols, [&](std::int64_t i, auto part) {
      store(y + i, load<C>(x + i, part) * rstd * load<C>(weight + i, part), part);
    });
  });
}

template <class T, class G>
void backward(const RmsNormBackward& a) {
  using C = accumulate_t<T>;
  const std::int64_t rows = a.x.shape.rows(), cols = a.x.shape.cols();
  const std::int64_t grain = partial_rows(rows, cols);
  const C count = static_cast<C>(cols);
  const T *all_dy = a.dy.data<T>(), *all_x = a.x.data<T>(), *weight = a.weight.data<T>();
  const C* rstds = a.rstd.data<C>();
  const SinkWriter<G, C> dx(a.dx);
  C* partials = a.dweight ? a.partials.data<C>() : nullptr;
  parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    C* dweight = partials ? partials + begin / grain * cols : nullptr;
    if (dweight) std::memset(dweight, 0, static_cast<std::size_t>(cols) * sizeof(C));
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t base = row_offset(row, cols);
      const T *dy = all_dy + base, *x = all_x + base;
      const C rstd = rstds[row];
      const C dot = sum_row<C>(cols, [&](std::int64_t i, auto part) {
        return load<C>(dy + i, part) * load<C>(weight + i, part) * load<C>(x + i, part);
      });
      const C gx_mean = rstd * dot / count;
      vector_loop<C>(cols, [&](std::int64_t i, auto part) {
        const Vec<C> xhat = load<C>(x + i, part) * rstd;
        const Vec<C> grad = load<C>(dy + i, part);
        if (dweight) store(dweight + i, load<C>(dweight + i, part) + grad * xhat, part);
        if (dx) {
          const Vec<C> g = grad * load<C>(weight + i, part);
          dx.put(base + i, rstd * (g - xhat * gx_mean), part);
        }
      });
    }
  });
  reduce_partials<T>(partials, chunk_count(rows, grain), cols, cols, a.dweight);
}
}  // namespace

void rms_norm_forward(Stream, const RmsNormForward& a) {
  visit_float(a.x.dtype, [&]<class T>() { forward<T>(a); });
}

void rms_norm_backward(Stream, const RmsNormBackward& a) {
  if (!a.dx && !a.dweight) return;
  visit_float(a.x.dtype,
              [&]<class T>() { visit_sink<T>(a.dx, [&]<class G>() { backward<T, G>(a); }); });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

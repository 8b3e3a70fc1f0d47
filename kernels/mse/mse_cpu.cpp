#include <accrue/kernels/mse/mse.h>
#include <accrue/kernels/rows.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/rows.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
constexpr std::int64_t kRunsPerChunk = 4;

template <class T>
void gradient(const T* x, const T* target, std::int64_t n, accumulate_t<T> factor,
              const GradSink& sink) {
  using C = accumulate_t<T>;
  if (!sink) return;
  visit_sink<T>(sink, [&]<class G>() {
    const SinkWriter<G, C> out(sink);
    parallel_for(n, kRunsPerChunk * kMseRun, [&](std::int64_t begin, std::int64_t end) {
      vector_loop<C>(end - begin, [&](std::int64_t i, auto part) {
        const std::int64_t at = begin + i;
        out.put(at, (load<C>(x + at, part) - load<C>(target + at, part)) * factor, part);
      });
    });
  });
}
}  // namespace

void mse_forward(Stream, const MseForward& a) {
  const std::int64_t n = a.x.shape.numel(), runs = mse_workspace(n);
  double* sums = a.workspace.data<double>();
  visit_float(a.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T *x = a.x.data<T>(), *target = a.target.data<T>();
    parallel_for(runs, kRunsPerChunk, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t run = begin; run < end; ++run) {
        const std::int64_t base = row_offset(run, kMseRun);
        sums[run] = static_cast<double>(
            sum_row<C>(std::min(kMseRun, n - base), [&](std::int64_t i, auto part) {
              const Vec<C> d = load<C>(x + base + i, part) - load<C>(target + base + i, part);
              return d * d;
            }));
      }
    });
    double total = 0;
    for (std::int64_t run = 0; run < runs; ++run) total += sums[run];
    *a.sum.data<C>() = static_cast<C>(total);
    *a.weight.data<C>() = static_cast<C>(n);
  });
}

void mse_backward(Stream, const MseBackward& a) {
  visit_float(a.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const C twice = 2 * *a.dsum.data<C>();
    const std::int64_t n = a.x.shape.numel();
    gradient<T>(a.x.data<T>(), a.target.data<T>(), n, twice, a.dx);
    gradient<T>(a.x.data<T>(), a.target.data<T>(), n, -twice, a.dtarget);
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

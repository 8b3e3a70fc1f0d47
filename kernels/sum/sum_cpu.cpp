#include <accrue/kernels/sum/sum.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/elementwise.h>
#include <accrue/kernels/cpu/reduce.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void sum_forward(Stream, const SumForward& a) {
  visit_float(a.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* x = a.x.data<T>();
    const GradSink y{a.y};
    visit_sink<T>(y, [&]<class G>() {
      const SinkWriter<G, C> out(y);
      reduce<C>(
          a.plan, static_cast<double*>(a.workspace.ptr),
          [=](std::int64_t i, auto part) { return load<C>(x + i, part); },
          [&](std::int64_t j, double sum) { out.put_one(j, static_cast<C>(sum * a.factor)); });
    });
  });
}

void sum_backward(Stream, const SumBackward& a) {
  if (!a.dx) return;
  const std::int64_t inner = a.plan.inner, n = a.plan.n;
  visit_float(a.dy.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* dy = a.dy.data<T>();
    const C factor = static_cast<C>(a.factor);
    visit_float(a.dx.dst.dtype, [&]<class G>() {
      const SinkWriter<G, C> out(a.dx);
      parallel_for(a.plan.outer * n * inner, kElementGrain,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t at = begin; at < end;) {
                       const std::int64_t o = at / (n * inner), i = at % inner;
                       // A run over which dy is one number, or goes along with dx.
                       const std::int64_t run =
                           std::min(end, inner == 1 ? (o + 1) * n : at - i + inner) - at;
                       const T* from = dy + o * inner + i;
                       vector_loop<C>(run, [&](std::int64_t k, auto part) {
                         const Vec<C> g =
                             inner == 1 ? splat<C>(static_cast<C>(*from)) : load<C>(from + k, part);
                         out.put(at + k, g * factor, part);
                       });
                       at += run;
                     }
                   });
    });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

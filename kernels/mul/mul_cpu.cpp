#include <accrue/kernels/mul/mul.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/elementwise.h>
#include <accrue/kernels/cpu/reduce.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void mul_forward(Stream, const MulForward& x) {
  binary_forward(x.a, x.b, x.y, [](auto a, auto b) { return a * b; });
}

void mul_backward(Stream, const MulBackward& x) {
  const std::int64_t n = x.dy.shape.numel();
  if (x.da && x.db && x.period == n)
    return binary_backward(x.dy, x.a, x.b, x.da, x.db, []<class V>(V a, V b) {
      return Both<V>{b, a};
    });
  visit_float(x.dy.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* dy = x.dy.data<T>();
    if (x.da)
      visit_sink<T>(x.da, [&]<class G>() {
        const T* b = x.b.data<T>();
        const SinkWriter<G, C> out(x.da);
        repeat_loop<C>(n, x.period, [&](std::int64_t i, std::int64_t j, auto part) {
          out.put(i, load<C>(dy + i, part) * load_repeated<C>(b, x.period, j, part), part);
        });
      });
    if (x.db)
      visit_sink<T>(x.db, [&]<class G>() {
        const T* a = x.a.data<T>();
        const SinkWriter<G, C> out(x.db);
        const auto product = [=](std::int64_t i, auto part) {
          return load<C>(dy + i, part) * load<C>(a + i, part);
        };
        if (x.period == n)
          element_loop<C>(n,
                          [&](std::int64_t i, auto part) { out.put(i, product(i, part), part); });
        else
          reduce<C>(leading_sum(n, x.period), static_cast<double*>(x.workspace.ptr), product,
                    [&](std::int64_t j, double sum) { out.put_one(j, static_cast<C>(sum)); });
      });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

#include <accrue/kernels/add/add.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/elementwise.h>
#include <accrue/kernels/cpu/reduce.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void add_forward(Stream, const AddForward& x) {
  binary_forward(x.a, x.b, x.y, [](auto a, auto b) { return a + b; });
}

void add_backward(Stream, const AddBackward& x) {
  if (!x.db) return;
  if (x.period == x.dy.shape.numel()) return scaled_backward(x.dy, x.db, x.factor);
  visit_float(x.dy.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* dy = x.dy.data<T>();
    visit_sink<T>(x.db, [&]<class G>() {
      const SinkWriter<G, C> out(x.db);
      reduce<C>(
          leading_sum(x.dy.shape.numel(), x.period), static_cast<double*>(x.workspace.ptr),
          [=](std::int64_t i, auto part) { return load<C>(dy + i, part); },
          [&](std::int64_t j, double sum) { out.put_one(j, static_cast<C>(sum * x.factor)); });
    });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

#include <accrue/kernels/rows.h>
#include <accrue/kernels/softmax/softmax.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/rows.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
template <class T>
void forward_row(const T* x, T* y, std::int64_t n) {
  using C = accumulate_t<T>;
  C top = max_row<C>(n, [&](std::int64_t i, auto part) { return load<C>(x + i, part); });
  // Without a finite maximum nothing is subtracted: -inf gives 0 then, and NaN stays NaN.
  if (top == -std::numeric_limits<C>::infinity()) top = 0;
  // float and double keep the exponentials in y. bfloat16 would round them twice, so it computes
  // them again.
  constexpr bool kKeep = std::is_same_v<T, C>;
  const C sum = sum_row<C>(n, [&](std::int64_t i, auto part) {
    const Vec<C> e = exp_nonpositive(load<C>(x + i, part) - top);
    if constexpr (kKeep) store(y + i, e, part);
    return e;
  });
  const C factor = sum == 0 ? C(0) : C(1) / sum;
  vector_loop<C>(n, [&](std::int64_t i, auto part) {
    if constexpr (kKeep)
      store(y + i, load<C>(y + i, part) * factor, part);
    else
      store(y + i, exp_nonpositive(load<C>(x + i, part) - top) * factor, part);
  });
}
}  // namespace

void softmax_forward(Stream, const SoftmaxForward& a) {
  const std::int64_t cols = a.x.shape.cols();
  visit_float(a.x.dtype, [&]<class T>() {
    const T* x = a.x.data<T>();
    T* y = a.y.data<T>();
    for_rows(a.x.shape.rows(), cols, [&](std::int64_t row) {
      forward_row(x + row_offset(row, cols), y + row_offset(row, cols), cols);
    });
  });
}

void softmax_backward(Stream, const SoftmaxBackward& a) {
  if (!a.dx) return;
  const std::int64_t cols = a.y.shape.cols();
  visit_float(a.y.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* all_dy = a.dy.data<T>();
    const T* all_y = a.y.data<T>();
    visit_sink<T>(a.dx, [&]<class G>() {
      const SinkWriter<G, C> out(a.dx);
      for_rows(a.y.shape.rows(), cols, [&](std::int64_t row) {
        const std::int64_t base = row_offset(row, cols);
        const T *dy = all_dy + base, *y = all_y + base;
        const C dot = sum_row<C>(cols, [&](std::int64_t i, auto part) {
          return load<C>(dy + i, part) * load<C>(y + i, part);
        });
        vector_loop<C>(cols, [&](std::int64_t i, auto part) {
          out.put(base + i, load<C>(y + i, part) * (load<C>(dy + i, part) - dot), part);
        });
      });
    });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

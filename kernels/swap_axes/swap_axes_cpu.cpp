#include <accrue/kernels/rows.h>
#include <accrue/kernels/swap_axes/swap_axes.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/rows.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void swap_axes_backward(Stream, const SwapAxesBackward& a) {
  const Shape& shape = a.dy.shape;
  if (!a.dx || shape.numel() == 0) return;
  const std::int64_t rows = shape[0] * shape[1], cols = shape.numel() / rows;
  visit_float(a.dy.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* all = a.dy.data<T>();
    visit_sink<T>(a.dx, [&]<class G>() {
      const SinkWriter<G, C> out(a.dx);
      for_rows(rows, cols, [&](std::int64_t row) {
        const T* dy = all + row_offset(row % shape[0] * shape[1] + row / shape[0], cols);
        vector_loop<C>(cols, [&](std::int64_t i, auto part) {
          out.put(row_offset(row, cols) + i, load<C>(dy + i, part), part);
        });
      });
    });
  });
}

void swap_axes_forward(Stream s, const SwapAxesForward& a) {
  swap_axes_backward(s, {.dy = a.x, .dx = {a.y}});
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

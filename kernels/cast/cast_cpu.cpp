#include <accrue/kernels/cast/cast.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/elementwise.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void cast_backward(Stream, const CastBackward& a) {
  if (!a.dx) return;
  visit_float(a.dx.dst.dtype, [&]<class G>() {
    visit_float(a.dy.dtype, [&]<class T>() {
      using C = accumulate_t<G>;
      const T* dy = a.dy.data<T>();
      const SinkWriter<G, C> out(a.dx);
      element_loop<C>(a.dy.shape.numel(),
                      [&](std::int64_t i, auto part) { out.put(i, load<C>(dy + i, part), part); });
    });
  });
}

void cast_forward(Stream s, const CastForward& a) { cast_backward(s, {.dy = a.x, .dx = {a.y}}); }
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

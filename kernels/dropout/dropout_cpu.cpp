#include <accrue/kernels/dropout/dropout.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/dropout_mask.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void dropout_backward(Stream, const DropoutBackward& a) {
  const std::int64_t rows = a.samples.shape.numel();
  if (!a.dx || rows == 0) return;
  visit_float(a.dy.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* dy = a.dy.data<T>();
    const C factor = static_cast<C>(dropout_scale(a.p));
    visit_sink<T>(a.dx, [&]<class G>() {
      const SinkWriter<G, C> out(a.dx);
      dropout_loop<C>(rows, a.dy.shape.numel() / rows, a.key, a.samples, a.first_element, a.site,
                      a.p, [&](std::int64_t i, VecInt<C> keep, auto part) {
                        const Vec<C> g = load<C>(dy + i, part) * factor;
                        out.put(i, keep ? g : Vec<C>{}, part);
                      });
    });
  });
}

void dropout_forward(Stream s, const DropoutForward& a) {
  dropout_backward(s, {a.x, {a.y}, a.key, a.samples, a.first_element, a.site, a.p});
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

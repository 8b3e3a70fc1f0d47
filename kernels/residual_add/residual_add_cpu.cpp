#include <accrue/kernels/dropout/dropout.h>
#include <accrue/kernels/residual_add/residual_add.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/dropout_mask.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void residual_add_forward(Stream, const ResidualAddForward& a) {
  const std::int64_t rows = a.samples.shape.numel();
  if (rows == 0) return;
  visit_float(a.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* x = a.x.data<T>();
    const T* f = a.f.data<T>();
    T* y = a.y.data<T>();
    const C factor = static_cast<C>(dropout_scale(a.p));
    dropout_loop<C>(rows, a.x.shape.numel() / rows, a.key, a.samples, a.first_element, a.site, a.p,
                    [&](std::int64_t i, VecInt<C> keep, auto part) {
                      const Vec<C> branch = load<C>(f + i, part) * factor;
                      store(y + i, load<C>(x + i, part) + (keep ? branch : Vec<C>{}), part);
                    });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

#include <accrue/kernels/silu/silu.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/elementwise.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void silu_forward(Stream, const SiluForward& a) {
  unary_forward(a.x, a.y, []<class V>(V x) { return x * sigmoid<element_t<V>>(x); });
}

void silu_backward(Stream, const SiluBackward& a) {
  unary_backward(a.dy, a.x, a.dx, []<class V>(V x) {
    using C = element_t<V>;
    const V s = sigmoid<C>(x);
    return s * (C(1) + x * (C(1) - s));
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

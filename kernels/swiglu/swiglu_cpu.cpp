#include <accrue/kernels/swiglu/swiglu.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/elementwise.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void swiglu_forward(Stream, const SwigluForward& a) {
  binary_forward(a.gate, a.up, a.y,
                 []<class V>(V gate, V up) { return gate * sigmoid<element_t<V>>(gate) * up; });
}

void swiglu_backward(Stream, const SwigluBackward& a) {
  binary_backward(a.dy, a.gate, a.up, a.dgate, a.dup, []<class V>(V gate, V up) {
    using C = element_t<V>;
    const V s = sigmoid<C>(gate);
    return Both<V>{up * s * (C(1) + gate * (C(1) - s)), gate * s};
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

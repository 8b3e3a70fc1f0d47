#include <accrue/kernels/scale/scale.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/elementwise.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void scale_forward(Stream, const ScaleForward& a) {
  unary_forward(a.x, a.y, [&]<class V>(V x) { return x * static_cast<element_t<V>>(a.factor); });
}

void scale_backward(Stream, const ScaleBackward& a) { scaled_backward(a.dy, a.dx, a.factor); }
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

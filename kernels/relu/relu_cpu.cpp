#include <accrue/kernels/relu/relu.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/elementwise.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void relu_forward(Stream, const ReluForward& a) {
  unary_forward(a.x, a.y, []<class V>(V x) { return x < 0 ? V{} : x; });
}

void relu_backward(Stream, const ReluBackward& a) {
  unary_backward(a.dy, a.y, a.dx,
                 []<class V>(V y) { return y > 0 ? splat<element_t<V>>(1) : V{}; });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

#include <accrue/kernels/relu/relu.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/elementwise.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void relu_forward(Stream, const ReluForward& a) {
  unary_forward(a.x, a.y, []<class V>(V x) { return x < 0 ? V{} : x; });
}

void relu_backward(Stream, const ReluBackward& a) {
  // A choice, not a product: an infinite dy must not become NaN where nothing passes.
  unary_gradient(a.dy, a.y, a.dx, []<class V>(V dy, V y) { return y <= 0 ? V{} : dy; });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

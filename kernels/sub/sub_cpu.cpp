#include <accrue/kernels/sub/sub.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/elementwise.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
void sub_forward(Stream, const SubForward& x) {
  binary_forward(x.a, x.b, x.y, [](auto a, auto b) { return a - b; });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

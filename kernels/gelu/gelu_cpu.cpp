#include <accrue/kernels/gelu/gelu.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/elementwise.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
// u = sqrt(2/pi) (x + 0.044715 x^3)
template <class V>
ACCRUE_INLINE V inner(V x) {
  using C = element_t<V>;
  return x * C(0.7978845608028654) * (C(1) + C(0.044715) * x * x);
}
template <class V>
ACCRUE_INLINE V cdf(V x) {  // of the normal distribution
  using C = element_t<V>;
  return C(0.5) + C(0.5) * erf(x * C(0.7071067811865476));
}
}  // namespace

void gelu_forward(Stream, const GeluForward& a) {
  if (a.kind == Gelu::kTanh) {
    unary_forward(a.x, a.y, []<class V>(V x) {
      using C = element_t<V>;
      return C(0.5) * x * (C(1) + tanh(inner(x)));
    });
  } else {
    unary_forward(a.x, a.y, []<class V>(V x) { return x * cdf(x); });
  }
}

void gelu_backward(Stream, const GeluBackward& a) {
  if (a.kind == Gelu::kTanh) {
    unary_backward(a.dy, a.x, a.dx, []<class V>(V x) {
      using C = element_t<V>;
      const V t = tanh(inner(x));
      const V du = C(0.7978845608028654) * (C(1) + C(3 * 0.044715) * x * x);
      return C(0.5) * (C(1) + t) + C(0.5) * x * (C(1) - t * t) * du;
    });
  } else {
    unary_backward(a.dy, a.x, a.dx, []<class V>(V x) {
      using C = element_t<V>;
      return cdf(x) + x * C(0.3989422804014327) * exp(C(-0.5) * x * x);
    });
  }
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

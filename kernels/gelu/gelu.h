#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// Which GELU: PyTorch's approximate="tanh" (GPT-2's gelu_new) or approximate="none".
enum class Gelu { kTanh, kExact };

/// Gaussian error linear unit (Hendrycks, Gimpel 2016; formulas as PyTorch's
/// torch.nn.functional.gelu).
///   exact: y = x/2 (1 + erf(x / sqrt 2))        tanh: y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715
///   x^3)))
/// x (any shape), float32, bfloat16 or float64 -> y, same shape and dtype. Gradient: x, recomputed
/// from x.
Tensor gelu(const Tensor& x, Gelu kind = Gelu::kTanh);

namespace kernels {
/// Puts y = gelu(x) on the current tape, if there is one. For ops that compute y beside x.
void record_gelu(const Tensor& x, Gelu kind, Tensor& y);

struct GeluForward {
  ConstView x;
  View y;  // may be x
  Gelu kind = Gelu::kTanh;
};
struct GeluBackward {
  ConstView dy, x;
  GradSink dx;  // may be dy
  Gelu kind = Gelu::kTanh;
};
inline Work work_of(const GeluForward& a) { return moved(a.x, a.y); }
inline Work work_of(const GeluBackward& a) { return moved(a.dy, a.x, a.dx); }
extern const Kernel<GeluForward> gelu_forward;
extern const Kernel<GeluBackward> gelu_backward;
}  // namespace kernels
}  // namespace accrue

#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// The gate of a SwiGLU feed-forward layer (Shazeer 2020, "GLU Variants Improve Transformer"; as in
/// Llama): y = silu(gate) * up, element by element. Both of one shape, float32, bfloat16 or float64
/// -> y, same shape and dtype. Gradients: gate and up, recomputed from both.
Tensor swiglu(const Tensor& gate, const Tensor& up);

namespace kernels {
struct SwigluForward {
  ConstView gate, up;
  View y;  // may be either
};
struct SwigluBackward {
  ConstView dy, gate, up;
  GradSink dgate, dup;  // dup may be dy; dgate too, if dup is empty
};
inline Work work_of(const SwigluForward& a) { return moved(a.gate, a.up, a.y); }
inline Work work_of(const SwigluBackward& a) { return moved(a.dy, a.gate, a.up, a.dgate, a.dup); }
extern const Kernel<SwigluForward> swiglu_forward;
extern const Kernel<SwigluBackward> swiglu_backward;
}  // namespace kernels
}  // namespace accrue

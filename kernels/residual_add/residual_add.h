#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/random.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// The end of a residual branch: y = x + dropout(f), in one pass; y = x + f when p is 0. x and f
/// (batch, ...), one shape, float32, bfloat16 or float64 -> y, same shape and dtype. Masks, p and
/// errors as in kernels/dropout/dropout.h. Gradients: x gets dy itself, without a copy where it can
/// be; f gets dy under the mask (dy itself too when p is 0).
Tensor residual_add(const Tensor& x, const Tensor& f, double p = 0, const RandomState& random = {},
                    std::uint32_t site = 0);

/// What a norm makes of a residual branch that ends before it (residual_layer_norm,
/// residual_rms_norm): sum = x + f and y = norm(sum).
struct SumAndNorm {
  Tensor sum, y;
};

namespace kernels {
/// "residual_layer_norm: f must have shape (2, 3), got (3,) (the shape of x)"
void check_residual(std::string_view op, const Tensor& x, const Tensor& f);
/// Notes sum = x + f, which another op has computed, on the current tape.
void record_residual_sum(const Tensor& x, const Tensor& f, Tensor& sum);

/// For p > 0. Without dropout: add_forward; backward: add_backward for x, dropout_backward for f.
struct ResidualAddForward {
  ConstView x, f;              // (samples.numel(), ...)
  View y;                      // may be either
  ConstView key{}, samples{};  // as in RandomState
  std::int64_t first_element = 0;
  std::uint32_t site = 0;
  double p = 0;
};
inline Work work_of(const ResidualAddForward& a) { return moved(a.x, a.f, a.y); }
extern const Kernel<ResidualAddForward> residual_add_forward;
}  // namespace kernels
}  // namespace accrue

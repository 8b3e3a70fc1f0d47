#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/loss.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// Squared error as (sum, weight).   sum = sum_i (x_i - target_i)^2,   weight = number of elements
/// (torch.nn.functional.mse_loss is sum / weight). x, target (any equal shape), of one floating
/// dtype. Terms are added in float32 (float64) over runs of 4096, the runs in float64, in fixed
/// order.
/// Gradients: x and target.   dx_i = 2 (x_i - target_i),   dtarget = -dx
Loss mse(const Tensor& x, const Tensor& target);

namespace kernels {
struct MseForward {
  ConstView x, target;
  View sum, weight;  // rank 0, float32 (float64 for float64)
  View workspace;    // float64 (mse_workspace(numel))
};
struct MseBackward {
  ConstView dsum;  // d(objective)/d(sum), rank 0
  ConstView x, target;
  GradSink dx, dtarget;
};
inline Work work_of(const MseForward& a) { return moved(a.x, a.target); }
inline Work work_of(const MseBackward& a) { return moved(a.x, a.target, a.dx, a.dtarget); }
extern const Kernel<MseForward> mse_forward;
extern const Kernel<MseBackward> mse_backward;

inline constexpr std::int64_t kMseRun = 4096;
constexpr std::int64_t mse_workspace(std::int64_t numel) { return chunk_count(numel, kMseRun); }
}  // namespace kernels
}  // namespace accrue

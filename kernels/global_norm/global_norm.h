#pragma once
#include <span>
#include <accrue/core/dispatch.h>
#include <accrue/kernels/step_state.h>
#include <accrue/kernels/work.h>

namespace accrue::kernels {

/// Ends a window: norm, clipping, 1/weight, the non-finite check and the learning
/// rate, all left in *state, which lies on the device: the host reads nothing.
///   norm  = sqrt(sum g^2) / weight, over the segments of grads (float32 or float64)
///   scale = min(1, max_norm / (norm + 1e-6)) / weight   (torch.nn.utils.clip_grad_norm_; no
///           clipping with max_norm 0)
///   loss  = loss_sum / weight,   lr = schedule.at(step)
///   skip  = the sum of squares, loss_sum or weight is not finite, or weight <= 0; then scale = 0
///           and skipped + 1, else step + 1
/// loss_sum and weight are read and left as they are. Squares are added in double: over 32 lanes
/// in chunks of 4096 elements, which begin at each segment's offset; then the sums of the chunks,
/// in the order of the segments, over 1024 lanes (lane j has chunks j, j + 1024, ...). Lanes are
/// added in halves. So the bits of a float32 norm depend neither on the threads nor on the
/// instruction set nor on the device; only a cosine's learning rate may differ by an ulp between
/// devices. Clipping comes after the sums are divided by the weight, once per window.
struct GlobalNorm {
  ConstView grads;                    // flat block
  std::span<const Segment> segments;  // of the touched parameters; on the host
  View workspace;                     // global_norm_workspace(segments) elements of float64
  StepState* state = nullptr;         // on the device
  ScheduleSpec schedule{};
  double max_norm = 0;  // 0: no clipping
};
inline Work work_of(const GlobalNorm& a) {
  return {0.0, static_cast<double>(elements_of(a.segments) * size_of(a.grads.dtype))};
}
extern const Kernel<GlobalNorm> global_norm;

inline constexpr std::int64_t kNormChunk = 4096;
inline constexpr int kNormSums = 32, kNormLanes = 1024;
std::int64_t global_norm_workspace(std::span<const Segment> segments);
}  // namespace accrue::kernels

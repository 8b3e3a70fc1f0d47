#pragma once
#include <span>
#include <accrue/core/dispatch.h>
#include <accrue/kernels/step_state.h>
#include <accrue/kernels/work.h>

namespace accrue::kernels {

/// Throws on values outside 0 <= beta < 1, eps >= 0, weight_decay >= 0.
void check_options(const AdamwOptions& options);

/// AdamW (Loshchilov, Hutter 2019) over flat blocks, as torch.optim.AdamW. With g = scale * grad,
/// lr, scale and step as global_norm left them in *state, and the options in state->adamw:
///   p -= lr weight_decay p                (segments with decay only; the factor is 1 - lr * decay)
///   m = beta1 m + (1 - beta1) g,          v = beta2 v + (1 - beta2) g^2
///   p -= lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
/// Where state->skip is set, nothing is written. Parameters without a segment (untouched in this
/// window) stay as they are, their moments too; `step` counts the updates of the whole set.
/// float32 and float64 sets: value, grads, m and v have one dtype. bfloat16 sets: master, grads, m
/// and v are float32, p is the master, and value gets it rounded in the same pass. Without a master
/// p is the value itself, rounded stochastically (kernels/stochastic_rounding.h): the same bits on
/// every instruction set and device.
/// Moments are zero before step 1.
struct Adamw {
  View value, master;  // master: of bfloat16 sets only, may be empty; ignored otherwise
  ConstView grads;
  View m, v;
  std::span<const Segment> segments;  // of the touched parameters; on the host
  const StepState* state = nullptr;   // on the device
  std::int64_t first = 0;             // the element of the set with which these blocks begin
};
/// Reads gradient, weight and moments; writes weight and moments, and the bfloat16 copy
/// of a master.
inline Work work_of(const Adamw& a) {
  const std::int64_t wide = size_of(a.grads.dtype), narrow = size_of(a.value.dtype);
  const std::int64_t weights = narrow == wide ? 2 * wide
                               : a.master     ? 2 * wide + narrow
                                              : 2 * narrow;
  return {0.0, static_cast<double>(elements_of(a.segments) * (5 * wide + weights))};
}
extern const Kernel<Adamw> adamw;
}  // namespace accrue::kernels

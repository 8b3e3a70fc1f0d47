#pragma once
#include <span>
#include <accrue/core/dispatch.h>
#include <accrue/kernels/step_state.h>
#include <accrue/kernels/work.h>

namespace accrue::kernels {

/// Throws on negative or infinite values, and on nesterov without momentum or with dampening.
void check_options(const SgdOptions& options);

/// Stochastic gradient descent over flat blocks, as torch.optim.SGD. With lr, scale and step as
/// global_norm left them in *state, and the options in state->sgd:
///   g = scale * grad + weight_decay p     (the decay for segments with decay only)
///   b = g at step 1, else momentum b + (1 - dampening) g;   g = b, or g + momentum b with nesterov
///   p -= lr g
/// The middle line is left out without momentum; then `momentum_buffer` may be empty. A parameter
/// first touched after step 1 begins with b = 0 (the caller zeroes the block), so with
/// dampening its first step is (1 - dampening) g.
/// Where state->skip is set, nothing is written. Parameters without a segment (untouched in this
/// window) stay as they are, their buffers too. Dtypes as in Adamw.
struct Sgd {
  View value, master;  // master: of bfloat16 sets only, may be empty; ignored otherwise
  ConstView grads;
  View momentum_buffer;
  std::span<const Segment> segments;  // of the touched parameters; on the host
  const StepState* state = nullptr;   // on the device
  std::int64_t first = 0;             // the element of the set with which these blocks begin
};
/// Reads gradient, weight and momentum; writes weight and momentum, and the bfloat16 copy
/// of a master.
inline Work work_of(const Sgd& a) {
  const std::int64_t wide = size_of(a.grads.dtype), narrow = size_of(a.value.dtype);
  const std::int64_t weights = narrow == wide ? 2 * wide
                               : a.master     ? 2 * wide + narrow
                                              : 2 * narrow;
  const std::int64_t state = (a.momentum_buffer ? 3 : 1) * wide;
  return {0.0, static_cast<double>(elements_of(a.segments) * (state + weights))};
}
extern const Kernel<Sgd> sgd;
}  // namespace accrue::kernels

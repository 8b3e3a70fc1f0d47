#pragma once
// A run of the flat blocks that one call of an optimizer's kernel updates.
#include <span>
#include <vector>
#include <accrue/core/parameter.h>
#include <accrue/kernels/step_state.h>

namespace accrue::optim {

/// Elements [first, first + count) of the set, in every block that an update reads or writes. The
/// blocks begin there: segments count from it.
struct FlatPart {
  std::int64_t first = 0, count = 0;
  View value, master;  // master: empty where the set has none of its own
  ConstView grads;
  std::span<const Tensor> state;  // the optimizer's blocks, in the order of add_state()
  std::span<const kernels::Segment> segments;
};

/// Replaces `out` by the pieces of segments in [first, end), counted from `first`.
void clip_segments(std::span<const kernels::Segment> segments, std::int64_t first, std::int64_t end,
                   std::vector<kernels::Segment>& out);

/// What of `flat` [first, first + count) is; empty where it is undefined.
inline View part_of(const Tensor& flat, std::int64_t first, std::int64_t count) {
  return flat.defined() ? flat.window(first, {count}).view() : View{};
}
}  // namespace accrue::optim

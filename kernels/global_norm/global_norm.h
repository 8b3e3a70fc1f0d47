#pragma once
#include <span>
#include <accrue/core/dispatch.h>
#include <accrue/kernels/step_state.h>
#include <accrue/kernels/work.h>

namespace accrue::kernels {

/// The squares of the gradients, as sums of pieces: a segment is cut where the flat block's
/// multiples of kNormChunk elements are, and sums[i] becomes the sum over piece i, in the order of
/// the segments. In double, over 32 lanes (lane j has the piece's elements j, j + 32, ...), which
/// are added in halves. Blocks that begin at a multiple of kNormChunk of the set, a rank's part for
/// one, so have the pieces of the whole set.
struct SquareSums {
  ConstView grads;                    // flat block, float32 or float64
  std::span<const Segment> segments;  // of the touched parameters; on the host
  View sums;                          // norm_pieces(segments) elements of float64
};
inline Work work_of(const SquareSums& a) {
  return {0.0, static_cast<double>(elements_of(a.segments) * size_of(a.grads.dtype))};
}
extern const Kernel<SquareSums> square_sums;

/// Ends a window: norm, clipping, 1/weight, the non-finite check and the learning
/// rate, all left in *state, which lies on the device: the host reads nothing.
///   norm  = sqrt(sum of sums) / weight
///   scale = min(1, max_norm / (norm + 1e-6)) / weight   (torch.nn.utils.clip_grad_norm_; no
///           clipping with max_norm 0)
///   loss  = loss_sum / weight,   lr = schedule.at(step)      (state->max_norm, state->schedule)
///   skip  = the sum of squares, loss_sum or weight is not finite, or weight <= 0; then scale = 0
///           and skipped + 1, else step + 1
/// loss_sum and weight are read and left as they are. The sums of all segments of the set are added
/// over 1024 lanes (lane j has sums j, j + 1024, ...), which are added in halves. So the bits of a
/// float32 norm depend neither on the threads nor on the instruction set nor on the device nor on
/// the number of ranks; only a cosine's learning rate may differ by an ulp between devices.
/// Clipping comes after the sums are divided by the weight, once per window.
struct GlobalNorm {
  ConstView sums;              // float64, of square_sums
  StepState* state = nullptr;  // on the device
};
inline Work work_of(const GlobalNorm& a) { return {0.0, static_cast<double>(bytes_of(a.sums))}; }
extern const Kernel<GlobalNorm> global_norm;

inline constexpr std::int64_t kNormChunk = 4096;
inline constexpr int kNormSums = 32, kNormLanes = 1024;
/// How many pieces square_sums makes of a segment, and of all.
constexpr std::int64_t norm_pieces(const Segment& s) {
  return s.size <= 0 ? 0 : (s.offset + s.size - 1) / kNormChunk - s.offset / kNormChunk + 1;
}
std::int64_t norm_pieces(std::span<const Segment> segments);
}  // namespace accrue::kernels

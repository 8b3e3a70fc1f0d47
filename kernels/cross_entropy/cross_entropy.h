#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/loss.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  // rows with this target count nothing
  double label_smoothing = 0;        // in [0, 1]
  double z_loss = 0;          // adds z_loss * lse^2 per counted row (PaLM), not class-weighted
  Tensor class_weights = {};  // (V), float32; undefined: all 1
  /// The gradient is written over the logits, in the forward pass: no second block of their size.
  /// Only when a tape wants it; afterwards nobody may use the logits' values, and each backward
  /// pass needs its own forward pass. The op that made the logits must not need its result in its
  /// own backward: a linear layer or a matmul does not; relu, softmax, attention do.
  bool in_place = false;
};

/// Log-softmax and negative log-likelihood as (sum, weight); torch.nn.functional.cross_entropy is
/// sum / weight when z_loss is 0. With lse = log sum_c exp x_c, w = class weights, s = smoothing:
///   sum = sum over rows with target y != ignore_index of
///         (1 - s) w_y (lse - x_y) + s/V sum_c w_c (lse - x_c) + z lse^2
///   weight = sum over those rows of w_y   (their number without class weights)
/// Ignored rows count in neither, the smoothing term included. All rows ignored: (0, 0), gradient
/// 0. logits (..., V), floating; targets (...), int32 or int64 -> rank 0, float32 (float64 for
/// float64). Exponentials are summed in float32 (float64),
/// the row terms in float64, in an order that depends on the number of rows
/// only. A target that is neither in [0, V) nor ignore_index is an error that names its value and
/// position; on CUDA it comes when the host next waits, and the row counts nothing. NaN and +inf
/// logits of a counted row make the sum NaN.
/// Gradient: logits, of the sum.  With p = softmax(x) and A = (1-s) w_y + s/V sum_c w_c + 2 z lse:
///   dx_j = p_j A - s/V w_j - [j = y] (1-s) w_y
/// computed in float32 (float64) and rounded once to the logits' dtype.
Loss cross_entropy(const Tensor& logits, const Tensor& targets,
                   const CrossEntropyOptions& options = {});

namespace kernels {
/// What both passes compute with; class_weights (V) may be empty.
struct CrossEntropyTerms {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0, z_loss = 0;
  ConstView class_weights{};
};
struct CrossEntropyForward {
  ConstView logits, targets;
  View sum, weight;  // rank 0
  View statistics;   // (rows, 2): max x and sum exp(x - max x), float32 (float64 for float64)
  View workspace;    // float64 (rows, 2)
  View dlogits{};    // d(sum)/d(logits), logits' dtype; may be the logits; empty: not wanted
  CrossEntropyTerms terms{};
};
struct CrossEntropyBackward {
  ConstView dsum;  // d(objective)/d(sum), rank 0
  ConstView logits, targets, statistics;
  GradSink dlogits;
  CrossEntropyTerms terms{};
};
/// dlogits <- dsum * gradient. Nothing is moved when dst is `gradient` and dsum is 1.
struct CrossEntropyRescale {
  ConstView dsum;
  ConstView gradient;
  GradSink dlogits;
};
inline Work work_of(const CrossEntropyForward& a) {
  return moved(a.logits, a.targets, a.statistics, a.dlogits);
}
inline Work work_of(const CrossEntropyBackward& a) {
  return moved(a.logits, a.targets, a.statistics, a.dlogits);
}
inline Work work_of(const CrossEntropyRescale& a) {
  return a.gradient.ptr == a.dlogits.dst.ptr ? Work{} : moved(a.gradient, a.dlogits);
}
extern const Kernel<CrossEntropyForward> cross_entropy_forward;
extern const Kernel<CrossEntropyBackward> cross_entropy_backward;
extern const Kernel<CrossEntropyRescale> cross_entropy_rescale;

/// "cross_entropy: target 7 at position 3 is outside [0, 5) and is not ignore_index (-100)"
[[noreturn]] void cross_entropy_fail_target(std::int64_t target, std::int64_t position,
                                            std::int64_t classes, std::int64_t ignore_index);
}  // namespace kernels
}  // namespace accrue

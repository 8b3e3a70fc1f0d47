#include <array>
#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/cross_entropy/cross_entropy.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(cross_entropy_forward, CrossEntropyForward);
ACCRUE_KERNEL(cross_entropy_backward, CrossEntropyBackward);
ACCRUE_KERNEL(cross_entropy_rescale, CrossEntropyRescale);

void cross_entropy_fail_target(std::int64_t target, std::int64_t position, std::int64_t classes,
                               std::int64_t ignore_index) {
  accrue::detail::fail(ErrorCode::kInvalidArgument,
                       accrue::detail::concat("cross_entropy: target ", target, " at position ",
                                              position, " is outside [0, ", classes,
                                              ") and is not ignore_index (", ignore_index, ")"));
}
}  // namespace kernels

namespace {
kernels::CrossEntropyTerms terms_of(const CrossEntropyOptions& o) {
  return {o.ignore_index, o.label_smoothing, o.z_loss, o.class_weights};
}

struct CrossEntropyNode {
  static constexpr std::string_view kName = "cross_entropy";
  Tensor logits, targets, statistics;
  CrossEntropyOptions options;
  void backward(BackwardContext& c) const {
    kernels::cross_entropy_backward(c.stream(), {.dsum = c.grad(),
                                                 .logits = logits,
                                                 .targets = targets,
                                                 .statistics = statistics,
                                                 .dlogits = c.sink(0),
                                                 .terms = terms_of(options)});
  }
};

// The gradient was computed in the forward pass.
struct CrossEntropyInPlaceNode {
  static constexpr std::string_view kName = "cross_entropy";
  Tensor gradient;
  void backward(BackwardContext& c) const {
    const GradSink dlogits =
        c.hand_over(0, gradient) ? GradSink{gradient.view(), 1.0f, 0.0f} : c.sink(0);
    kernels::cross_entropy_rescale(c.stream(),
                                   {.dsum = c.grad(), .gradient = gradient, .dlogits = dlogits});
  }
};

void check(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& o) {
  constexpr std::string_view kOp = "cross_entropy";
  kernels::check_floating(kOp, "logits", logits);
  kernels::check_integer(kOp, "targets", targets);
  kernels::check_device(kOp, "logits", logits, "targets", targets);
  const int rank = logits.shape().rank();
  ACCRUE_CHECK_SHAPE(rank >= 1, kOp, ": logits must have at least 1 dimension, got ",
                     logits.shape());
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  for (int i = 0; i + 1 < rank; ++i) dims[static_cast<std::size_t>(i)] = logits.shape()[i];
  kernels::check_shape(kOp, "targets", targets, Shape(dims.data(), rank - 1),
                       "the shape of logits without its last dimension");
  ACCRUE_CHECK(o.label_smoothing >= 0 && o.label_smoothing <= 1, kOp,
               ": label_smoothing must be in [0, 1], got ", o.label_smoothing);
  ACCRUE_CHECK(std::isfinite(o.z_loss) && o.z_loss >= 0, kOp,
               ": z_loss must be finite and not negative, got ", o.z_loss);
  if (o.class_weights.defined()) {
    kernels::check_shape(kOp, "class_weights", o.class_weights, {logits.shape().cols()},
                         "one per class");
    ACCRUE_CHECK(o.class_weights.dtype() == DType::kF32, kOp,
                 ": class_weights must be float32, got ", o.class_weights.dtype());
    kernels::check_device(kOp, "logits", logits, "class_weights", o.class_weights);
  }
}
}  // namespace

Loss cross_entropy(const Tensor& logits, const Tensor& targets,
                   const CrossEntropyOptions& options) {
  check(logits, targets, options);
  const DType dtype = logits.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  const std::int64_t rows = targets.numel();
  Tape* tape = Tape::current();
  const bool in_place =
      options.in_place && tape && tape->mode() == Tape::Mode::kRecord && tape->wants({&logits});
  ACCRUE_CHECK(!in_place || !logits.grad_slot(),
               "cross_entropy: in_place would overwrite a parameter; the logits must be a result");

  Loss loss{Tensor::empty({}, dtype, logits.device(), {"cross_entropy.sum"}),
            Tensor::empty({}, dtype, logits.device(), {"cross_entropy.weight"})};
  const Tensor statistics =
      Tensor::empty({rows, 2}, dtype, logits.device(), {"cross_entropy.statistics"});
  const Tensor workspace = Tensor::empty({rows, 2}, DType::kF64, logits.device(),
                                         {"cross_entropy.workspace", Category::kWorkspace});
  kernels::cross_entropy_forward(logits.stream(), {.logits = logits,
                                                   .targets = targets,
                                                   .sum = loss.sum.view(),
                                                   .weight = loss.weight.view(),
                                                   .statistics = statistics.view(),
                                                   .workspace = workspace.view(),
                                                   .dlogits = in_place ? logits.view() : View{},
                                                   .terms = terms_of(options)});
  if (in_place)
    tape->record(CrossEntropyInPlaceNode{logits.detach()}, {&logits}, loss.sum);
  else if (tape)
    tape->record(CrossEntropyNode{logits, targets, statistics, options}, {&logits}, loss.sum);
  return loss;
}
}  // namespace accrue

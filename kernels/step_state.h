#pragma once
// What the kernels of one optimizer step share. Lives in device memory, so that no step waits for
// the host.
#include <cmath>
#include <cstdint>
#include <span>

namespace accrue::kernels {

/// A learning-rate schedule that a kernel can evaluate. See optim/schedule.h for the formulas.
struct ScheduleSpec {
  enum Kind : std::int32_t { kConstant, kLinear, kCosine };
  std::int32_t kind = kConstant;
  double base = 1e-3, final = 0.0;
  std::int64_t warmup = 0, total = 0;  // in optimizer steps

  /// Learning rate of the update number `step`, counted from 0. Warm-up: base * (step + 1) / warmup
  /// while step < warmup; then from base to `final` over the steps warmup .. total, linearly or
  /// along a half cosine.
  double at(std::int64_t step) const {
    return at(step, [](double t) { return std::cos(3.14159265358979323846 * t); });
  }
  /// The same for a kernel, which brings its own cos_pi(t) = cos(pi t).
  template <class CosPi>
  constexpr double at(std::int64_t step, CosPi cos_pi) const {
    if (step < warmup) return base * static_cast<double>(step + 1) / static_cast<double>(warmup);
    if (kind == kConstant) return base;
    const std::int64_t span = total - warmup;
    double t = span > 0 ? static_cast<double>(step - warmup) / static_cast<double>(span) : 1.0;
    t = t < 1.0 ? t : 1.0;
    return kind == kLinear ? base + (final - base) * t
                           : final + 0.5 * (base - final) * (1.0 + cos_pi(t));
  }
};

/// Of adamw. PyTorch's defaults. The learning rate comes from the schedule.
struct AdamwOptions {
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  std::uint64_t rounding_seed = 0;  // of bfloat16 sets without master weights
};

/// Of sgd. PyTorch's defaults. The learning rate comes from the schedule.
struct SgdOptions {
  double momentum = 0, dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;            // needs a momentum and no dampening
  std::uint64_t rounding_seed = 0;  // of bfloat16 sets without master weights
};

/// All numbers of an optimizer's current step. global_norm fills the middle part, the optimizer
/// kernel reads it. No kernel of a step takes one of them by value, so that a CUDA graph which has
/// captured it reads them at every launch.
struct StepState {
  // Sums over the window: the optimizer copies them in before global_norm runs.
  double loss_sum = 0, weight = 0;
  // Written by global_norm.
  double loss = 0;   // loss_sum / weight (NaN when weight is not positive)
  double norm = 0;   // of the gradient divided by weight, before clipping (NaN like loss)
  double lr = 0;     // of this step
  double scale = 0;  // clip / weight: what every gradient element is multiplied by (float32 sets
                     // round it once); 0 when the step is skipped
  std::int32_t skip = 0;  // 1: gradient, loss or weight not finite, or weight not positive;
                          // parameters, moments and step stay as they are
  // Counters.
  std::int64_t step = 0;     // updates done, this one included
  std::int64_t skipped = 0;  // windows skipped
  // Hyperparameters: the host writes them when they change.
  ScheduleSpec schedule{};
  double max_norm = 0;  // 0: no clipping
  AdamwOptions adamw{};
  SgdOptions sgd{};
};

/// A run of the flat blocks that one parameter fills, or the piece of it that is here.
struct Segment {
  std::int64_t offset = 0, size = 0;  // in elements
  bool decay = false;
  /// Elements of the parameter that lie before the piece: a multiple of 8. Only the first segment
  /// of a list begins inside of a parameter.
  std::int64_t before = 0;
};
inline std::int64_t elements_of(std::span<const Segment> segments) {
  std::int64_t n = 0;
  for (const Segment& s : segments) n += s.size;
  return n;
}
}  // namespace accrue::kernels

#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/random.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// y = keep ? s x : 0, s = 1 / (1 - p) up to the rounding of p below (Srivastava et al. 2014,
/// scaled in training). x (batch, ...), float32, bfloat16 or float64 -> y, same shape and dtype; p
/// in [0, 1), 0 returns x itself. random.samples holds one global sample index for each row of x.
/// Element e of a sample (a row begins with e = random.first_element) is kept when its 16 random
/// bits are >= t = round(65536 p), at most 65535: so with probability 1 - t / 65536, and s is the
/// inverse of that: the expectation of y is x. They are half e % 2 (0: the low one) of word e % 8 /
/// 2 of
///   philox4x32({e / 8, site, sample low, sample high}, random_key(seed, step)):
/// one Philox call for 8 elements, and a mask that knows nothing of the batch's cut or the threads.
/// `site` tells one dropout of a model from another. Gradient: x gets keep ? s dy : 0, the
/// mask computed again, never stored.
Tensor dropout(const Tensor& x, double p, const RandomState& random, std::uint32_t site);

namespace kernels {
constexpr std::uint32_t dropout_threshold(double p) {
  const auto t = static_cast<std::uint32_t>(p * 65536.0 + 0.5);
  return t < 65535u ? t : 65535u;
}
/// What kept elements are multiplied by: 1 / (1 - t / 65536), so that the expectation is exactly x.
constexpr double dropout_scale(double p) { return 65536.0 / (65536.0 - dropout_threshold(p)); }
struct DropoutForward {
  ConstView x;                 // (samples.numel(), ...)
  View y;                      // may be x
  ConstView key{}, samples{};  // as in RandomState
  std::int64_t first_element = 0;
  std::uint32_t site = 0;
  double p = 0;
};
struct DropoutBackward {
  ConstView dy;
  GradSink dx;                 // may be dy
  ConstView key{}, samples{};  // as in RandomState
  std::int64_t first_element = 0;
  std::uint32_t site = 0;
  double p = 0;
};
inline Work work_of(const DropoutForward& a) { return moved(a.x, a.y); }
inline Work work_of(const DropoutBackward& a) { return moved(a.dy, a.dx); }
extern const Kernel<DropoutForward> dropout_forward;
extern const Kernel<DropoutBackward> dropout_backward;

/// p in [0, 1), and for p > 0 one sample index for each row of x, on its device, and rows that
/// begin at a multiple of 8 elements.
void check_dropout(std::string_view op, const Tensor& x, double p, const RandomState& random);
}  // namespace kernels
}  // namespace accrue

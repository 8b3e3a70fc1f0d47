#include <accrue/kernels/window.h>

namespace accrue::kernels {
WindowAxis window_axis(std::string_view op, std::string_view axis, std::int64_t input,
                       std::int64_t taps, std::int64_t stride, std::int64_t padding,
                       std::int64_t dilation, bool ceil) {
  // Sums and products of numbers below this stay far inside int64.
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  ACCRUE_CHECK_SHAPE(taps >= 1 && taps < kMost, op, ": the window needs a positive ", axis,
                     ", got ", taps);
  ACCRUE_CHECK(stride >= 1 && stride < kMost, op, ": stride must be positive, got ", stride,
               " for the ", axis);
  ACCRUE_CHECK(dilation >= 1 && dilation < kMost, op, ": dilation must be positive, got ", dilation,
               " for the ", axis);
  ACCRUE_CHECK(padding >= 0 && padding < kMost, op, ": padding must not be negative, got ", padding,
               " for the ", axis);
  WindowAxis w{input, taps, stride, padding, dilation, 0};
  const std::int64_t room = input + 2 * padding - w.extent();
  ACCRUE_CHECK_SHAPE(room >= 0, op, ": a window of ", axis, " ", w.extent(),
                     " does not fit into the padded ", axis, " ", input + 2 * padding, " of x");
  w.output = (ceil ? WindowAxis::ceil_div(room, stride) : room / stride) + 1;
  if (ceil && (w.output - 1) * stride >= input + padding) --w.output;
  return w;
}
}  // namespace accrue::kernels

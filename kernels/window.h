#pragma once
// Windows that slide over the two last dimensions of (N, C, H, W): what convolution and pooling
// share.
#include <cstdint>
#include <string_view>
#include <accrue/core/types.h>

namespace accrue {

/// One number per axis of an image; a single number means both.
struct Axes2d {
  std::int64_t height, width;
  constexpr Axes2d(std::int64_t both) : height(both), width(both) {}
  constexpr Axes2d(std::int64_t h, std::int64_t w) : height(h), width(w) {}
  bool operator==(const Axes2d&) const = default;
};

namespace kernels {

/// One axis: tap t of output o reads input o * stride + t * dilation - padding, if it exists.
struct WindowAxis {
  std::int64_t input = 0, taps = 1, stride = 1, padding = 0, dilation = 1, output = 0;

  constexpr std::int64_t extent() const { return (taps - 1) * dilation + 1; }
  constexpr std::int64_t at(std::int64_t o, std::int64_t t) const {
    return o * stride + t * dilation - padding;
  }
  /// The outputs [first, end) whose tap t exists.
  constexpr std::int64_t first_output(std::int64_t t) const {
    return clamped(ceil_div(padding - t * dilation, stride));
  }
  constexpr std::int64_t end_output(std::int64_t t) const {
    return clamped(floor_div(input - 1 + padding - t * dilation, stride) + 1);
  }
  /// The taps [first, end) of output o that exist.
  constexpr std::int64_t first_tap(std::int64_t o) const {
    const std::int64_t t = ceil_div(padding - o * stride, dilation);
    return t < 0 ? 0 : t;
  }
  constexpr std::int64_t end_tap(std::int64_t o) const {
    const std::int64_t t = floor_div(input - 1 + padding - o * stride, dilation) + 1;
    return t > taps ? taps : t;
  }
  /// The outputs [first, end) whose window reaches input i (with gaps if dilated).
  constexpr std::int64_t first_reader(std::int64_t i) const {
    return clamped(ceil_div(i + padding - (extent() - 1), stride));
  }
  constexpr std::int64_t end_reader(std::int64_t i) const {
    return clamped(floor_div(i + padding, stride) + 1);
  }

  static constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    return a / b - (a % b < 0 ? 1 : 0);
  }
  static constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return -floor_div(-a, b);
  }

 private:
  constexpr std::int64_t clamped(std::int64_t o) const {
    return o < 0 ? 0 : o > output ? output : o;
  }
};

/// The axis of a window after its checks: taps, stride and dilation positive, padding not negative,
/// at least one output. `axis` is "height" or "width". Rounds the number of outputs down, or with
/// `ceil` up, as long as the last window begins inside the input or the padding before it.
WindowAxis window_axis(std::string_view op, std::string_view axis, std::int64_t input,
                       std::int64_t taps, std::int64_t stride, std::int64_t padding,
                       std::int64_t dilation, bool ceil = false);
}  // namespace kernels
}  // namespace accrue

#pragma once
// How a convolution is cut into matrix products: what the op and its kernels must agree on.
#include <algorithm>
#include <cstdint>
#include <accrue/core/types.h>
#include <accrue/kernels/window.h>

namespace accrue::kernels {

/// Some whole images, or a band of the output rows of one.
struct Conv2dTile {
  std::int64_t image = 0, images = 0;
  std::int64_t row = 0, rows = 0;          // of the output
  std::int64_t input_row = 0, inputs = 0;  // rows of x that belong to this tile (for dx)
};

/// A tile's columns are a matrix (C * R * S, images * rows * Q): row (c, r, s), column (image, p,
/// q), which is x[image, c, p stride + r dilation - padding, ...]. The rows of a group follow each
/// other. A tile of the output is (K, images * rows * Q).
class Conv2dTiles {
 public:
  /// Elements of a tile's two matrices together, unless a single row of the output (for dx: two
  /// windows' worth of rows) has more.
  static constexpr std::int64_t kElements = std::int64_t{1} << 22;

  /// x (N, C, H, W), y (N, K, P, Q). `input_bands`: every row of x belongs to one tile, which has
  /// all rows of the output that read it. Else every row of the output belongs to one tile.
  Conv2dTiles(const Shape& x, const Shape& y, const WindowAxis& height, const WindowAxis& width,
              bool input_bands)
      : height_(height),
        input_bands_(input_bands),
        batch_(x[0]),
        columns_(x[1] * height.taps * width.taps),
        channels_(y[1]),
        q_(width.output) {
    const std::int64_t pixels = kElements / std::max<std::int64_t>(1, columns_ + channels_);
    const std::int64_t p = height.output;
    if (pixels >= p * q_) {
      const std::int64_t most = std::max<std::int64_t>(1, std::min(pixels / (p * q_), batch_));
      const std::int64_t tiles = (batch_ + most - 1) / most;
      images_ = tiles > 0 ? (batch_ + tiles - 1) / tiles : 0;
      rows_ = p;
      band_ = input_bands ? height.input : p;
      return;
    }
    images_ = 1;
    rows_ = std::max<std::int64_t>(1, pixels / q_);
    if (!input_bands) {
      band_ = rows_;
      return;
    }
    rows_ = std::min(p, std::max(rows_, 2 * ((height.extent() - 1) / height.stride + 1)));
    band_ = rows_ == p ? height.input : rows_ * height.stride - (height.extent() - 1);
  }

  /// Elements of the workspaces.
  std::int64_t columns() const { return columns_ * images_ * rows_ * q_; }
  std::int64_t pixels() const { return channels_ * images_ * rows_ * q_; }

  /// f(tile) for every tile, in order. A tile may have no rows of the output.
  template <class F>
  void each(F f) const {
    const std::int64_t rows = input_bands_ ? height_.input : height_.output;
    for (std::int64_t image = 0; image < batch_; image += images_)
      for (std::int64_t row = 0; row < rows; row += band_) {
        Conv2dTile t{.image = image, .images = std::min(images_, batch_ - image)};
        const std::int64_t end = std::min(row + band_, rows);
        if (input_bands_) {
          t.input_row = row;
          t.inputs = end - row;
          t.row = height_.first_reader(row);
          t.rows = std::max<std::int64_t>(0, height_.end_reader(end - 1) - t.row);
        } else {
          t.row = row;
          t.rows = end - row;
        }
        f(t);
      }
  }

 private:
  WindowAxis height_;
  bool input_bands_;
  std::int64_t batch_, columns_, channels_, q_, images_ = 0, rows_ = 0, band_ = 0;
};
}  // namespace accrue::kernels

#include <cmath>
#include <limits>
#include <accrue/core/tape.h>
#include <accrue/kernels/max_pool2d/max_pool2d.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Distinct numbers, further apart than the step of the differences: the largest stays the largest.
// All are exact in bfloat16 up to 256 of them.
std::vector<double> shuffled(std::int64_t n) {
  std::vector<double> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(static_cast<double>(i * 61 % n) / 64 - 1.5);
  return v;
}

OpCase pool_case(const Shape& x, Axes2d kernel, const MaxPool2dOptions& o, std::int64_t p,
                 std::int64_t q) {
  return {.name = "max_pool2d",
          .inputs = {{.name = "x", .shape = x, .values = shuffled(x.numel())}},
          .run = [=](const std::vector<Tensor>& t) { return max_pool2d(t[0], kernel, o); },
          .reference =
              [=](const std::vector<std::vector<double>>& t) {
                const std::int64_t sh = o.stride.height ? o.stride.height : kernel.height;
                const std::int64_t sw = o.stride.width ? o.stride.width : kernel.width;
                std::vector<double> y;
                for (std::int64_t plane = 0; plane < x[0] * x[1]; ++plane)
                  for (std::int64_t i = 0; i < p; ++i)
                    for (std::int64_t j = 0; j < q; ++j) {
                      double best = -kInfinity;
                      for (std::int64_t r = 0; r < kernel.height; ++r)
                        for (std::int64_t s = 0; s < kernel.width; ++s) {
                          const std::int64_t h = i * sh + r * o.dilation.height - o.padding.height;
                          const std::int64_t w = j * sw + s * o.dilation.width - o.padding.width;
                          if (h >= 0 && h < x[2] && w >= 0 && w < x[3])
                            best = std::max(
                                best,
                                t[0][static_cast<std::size_t>((plane * x[2] + h) * x[3] + w)]);
                        }
                      y.push_back(best);
                    }
                return y;
              }};
}

struct Pooled {
  std::vector<float> y, dx;
};
Pooled pooled(const std::vector<float>& values, const Shape& shape, Axes2d kernel,
              const MaxPool2dOptions& o = {}) {
  Tensor x = Tensor::from(values, shape), y;
  Tape tape;
  tape.watch(x);
  {
    const Tape::Scope on(tape);
    y = max_pool2d(x, kernel, o);
  }
  tape.backward_from(
      y, Tensor::from(std::vector<float>(static_cast<std::size_t>(y.numel()), 1.0f), y.shape()));
  return {y.to_vector<float>(), tape.gradient(x).to_vector<float>()};
}
}  // namespace

TEST_CASE("max_pool2d: windows, strides, padding and dilation", "[kernels][max_pool2d]") {
  check_op(pool_case({1, 1, 1, 1}, 1, {}, 1, 1));
  check_op(pool_case({2, 2, 6, 4}, 2, {}, 3, 2));
  check_op(pool_case({1, 2, 7, 9}, 3, {.stride = 2, .padding = 1}, 4, 5));
  check_op(pool_case({1, 3, 5, 7}, {2, 3}, {.stride = 1, .padding = {1, 0}}, 6, 5));
  check_op(pool_case({1, 1, 9, 11}, 3, {.stride = {1, 2}, .padding = 2, .dilation = {2, 3}}, 9, 5));
  check_op(pool_case({2, 1, 5, 5}, 2, {.stride = 3}, 2, 2));  // some pixels are in no window
}

TEST_CASE("max_pool2d: ceil mode keeps only windows that begin inside", "[kernels][max_pool2d]") {
  check_op(pool_case({1, 2, 6, 5}, 2, {.ceil_mode = true}, 3, 3));
  check_op(pool_case({1, 1, 6, 6}, 3, {.stride = 2, .ceil_mode = true}, 3, 3));
  // The fourth window would begin in the padding behind x.
  check_op(pool_case({1, 1, 5, 6}, 2, {.stride = 2, .padding = 1, .ceil_mode = true}, 3, 4));
  check_op(pool_case({1, 1, 3, 3}, 3, {.stride = 5, .padding = 1, .ceil_mode = true}, 1, 1));
}

TEST_CASE("max_pool2d: no images and no channels", "[kernels][max_pool2d]") {
  check_op(pool_case({0, 2, 4, 4}, 2, {}, 2, 2));
  check_op(pool_case({2, 0, 4, 4}, 2, {}, 2, 2));
}

TEST_CASE("max_pool2d: of equal numbers the first gets the gradient", "[kernels][max_pool2d]") {
  const Pooled r = pooled({1, 3, 3, 0, 3, 3, 2, 2, 5}, {1, 1, 3, 3}, 2, {.stride = 1});
  CHECK(r.y == std::vector<float>{3, 3, 3, 5});
  CHECK(r.dx == std::vector<float>{0, 2, 0, 0, 1, 0, 0, 0, 1});
  const float low = -std::numeric_limits<float>::infinity();
  const Pooled none = pooled({low, low, low, low}, {1, 1, 2, 2}, 2);
  CHECK(none.y == std::vector<float>{low});
  CHECK(none.dx == std::vector<float>{1, 0, 0, 0});
}

TEST_CASE("max_pool2d: NaN wins, the last one gets the gradient", "[kernels][max_pool2d]") {
  const Pooled r = pooled({NAN, 1, 2, 9, 8, 3, NAN, 7}, {1, 1, 2, 4}, 2);
  CHECK(std::isnan(r.y[0]));
  CHECK(std::isnan(r.y[1]));
  CHECK(r.dx == std::vector<float>{1, 0, 0, 0, 0, 0, 1, 0});
  const Pooled two = pooled({NAN, NAN, 5, 6}, {1, 1, 2, 2}, 2);
  CHECK(two.dx == std::vector<float>{0, 1, 0, 0});
}

TEST_CASE("max_pool2d: a window without a number", "[kernels][max_pool2d]") {
  // Windows of one axis read (-3, 2), (-2, 3) and (-1, 4) of two pixels.
  const Pooled r =
      pooled({1, 2, 3, 4}, {1, 1, 2, 2}, 2, {.stride = 1, .padding = 3, .dilation = 5});
  CHECK(r.y == std::vector<float>(9, -std::numeric_limits<float>::infinity()));
  CHECK(r.dx == std::vector<float>(4, 0.0f));
}

TEST_CASE("max_pool2d: the same bits with any number of threads",
          "[kernels][max_pool2d][threads]") {
  check_threads({.name = "max_pool2d",
                 .inputs = {{.name = "x", .shape = {3, 5, 67, 61}}},
                 .run =
                     [](const std::vector<Tensor>& t) {
                       return max_pool2d(t[0], 3, {.stride = 1, .padding = 1});
                     },
                 .reference = {}});
}

TEST_CASE("max_pool2d: places are kept only for a gradient", "[kernels][max_pool2d]") {
  const Tensor x = Tensor::zeros({1, 1, 64, 64}, DType::kF32);
  Allocator& memory = Allocator::of(default_device());
  const auto before = memory.stats().live;
  Tape tape;
  const Tape::Scope on(tape);
  const Tensor y = max_pool2d(x, 2);
  CHECK(tape.size() == 0);
  CHECK(memory.stats().live - before == 32 * 32 * 4);
}

TEST_CASE("max_pool2d: errors say what came", "[kernels][max_pool2d][error]") {
  const Tensor x = Tensor::zeros({2, 3, 4, 5}, DType::kF32);
  CHECK(error_of([&] { max_pool2d({}, 2); }) == "max_pool2d: x is undefined");
  CHECK(error_of([&] {
          max_pool2d(Tensor::zeros({1, 1, 2, 2}, DType::kI64), 2);
        }) == "max_pool2d: x must be of floating dtype, got int64");
  CHECK(error_of([&] {
          max_pool2d(Tensor::zeros({3, 4}, DType::kF32), 2);
        }) == "max_pool2d: x must have 4 dimensions (N, C, H, W), got (3, 4)");
  CHECK(error_of([&] {
          max_pool2d(x, {2, 0});
        }) == "max_pool2d: the window needs a positive width, got 0");
  CHECK(error_of([&] { max_pool2d(x, 2, {.stride = -1}); }) ==
        "max_pool2d: stride must be positive, got -1 for the height");
  CHECK(error_of([&] { max_pool2d(x, 5); }) ==
        "max_pool2d: a window of height 5 does not fit into the padded height 4 of x");
  CHECK(error_of([&] {
          max_pool2d(x, 2, {.padding = {1, 2}});
        }) == "max_pool2d: padding must be at most half of the window's width 2, got 2");
}

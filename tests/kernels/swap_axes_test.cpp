#include <accrue/core/tape.h>
#include <accrue/kernels/swap_axes/swap_axes.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
std::vector<double> swapped(const std::vector<double>& x, const Shape& shape) {
  std::vector<double> y;
  const std::int64_t row = shape.numel() == 0 ? 0 : shape.numel() / (shape[0] * shape[1]);
  for (std::int64_t m = 0; m < shape[1]; ++m)
    for (std::int64_t a = 0; a < shape[0]; ++a)
      for (std::int64_t k = 0; k < row; ++k)
        y.push_back(x[static_cast<std::size_t>((a * shape[1] + m) * row + k)]);
  return y;
}
}  // namespace

TEST_CASE("swap_axes: the first two dimensions change places, forward and backward",
          "[kernels][swap_axes]") {
  const Shape shape = GENERATE(Shape{2, 3, 8}, Shape{3, 2, 40}, Shape{4, 5}, Shape{2, 2, 3, 5},
                               Shape{3, 0, 4}, Shape{2, 3, 0});
  check_op({.name = "swap_axes",
            .inputs = {{.name = "x", .shape = shape}},
            .run = [](const std::vector<Tensor>& in) { return swap_axes(in[0]); },
            .reference =
                [=](const std::vector<std::vector<double>>& in) { return swapped(in[0], shape); }});
}

TEST_CASE("swap_axes: windows at any address, and rows longer than a block of threads",
          "[kernels][swap_axes]") {
  const Shape shape = GENERATE(Shape{3, 2, 8}, Shape{3, 2, 4100});
  std::vector<double> values{-1};
  for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(static_cast<double>(i));
  const Tensor x = Tensor::from(values, {shape.numel() + 1}).window(1, shape);
  const Tensor y = swap_axes(x);
  CHECK(y.shape() == Shape{shape[1], shape[0], shape[2]});
  CHECK(y.to_vector<double>() == swapped({values.begin() + 1, values.end()}, shape));
}

TEST_CASE("swap_axes: nothing moves where one of the two has one element", "[kernels][swap_axes]") {
  const Tensor x = Tensor::zeros({1, 4, 3}, DType::kF32);
  CHECK(swap_axes(x).data<float>() == x.data<float>());
  CHECK(swap_axes(x).shape() == Shape{4, 1, 3});
  CHECK(swap_axes(swap_axes(x)).shape() == x.shape());
}

TEST_CASE("swap_axes: backward may begin at a result that was read as another shape",
          "[kernels][swap_axes]") {
  const Tensor values = Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, {2, 3});
  Tensor x = values.detach();
  Tape tape;
  tape.watch(x);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = swap_axes(x).reshape({6});
  }
  CHECK(y.to_vector<float>() == std::vector<float>{0, 3, 1, 4, 2, 5});
  tape.backward_from(y, y.clone());
  CHECK(tape.gradient(x).to_vector<float>() == values.to_vector<float>());
}

TEST_CASE("swap_axes: errors say what came", "[kernels][swap_axes]") {
  CHECK(error_of([] { swap_axes(Tensor{}); }) == "swap_axes: x is undefined");
  CHECK(error_of([] {
          swap_axes(Tensor::zeros({2, 2}, DType::kI32));
        }) == "swap_axes: x must be of floating dtype, got int32");
  CHECK(error_of([] { swap_axes(Tensor::zeros({2}, DType::kF32)); }) ==
        "swap_axes: x must have 2 dimensions or more, got (2,)");
}

#include <cmath>
#include <accrue/kernels/mse/mse.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
// Small whole numbers behind one that makes the block begin between two vectors.
Tensor shifted(const Shape& shape) {
  std::vector<float> v;
  for (std::int64_t i = 0; i <= shape.numel(); ++i)
    v.push_back(static_cast<float>(i * 7 % 23 - 11));
  return Tensor::from(v, {shape.numel() + 1}).window(1, shape);
}
}  // namespace

TEST_CASE("mse: the sum, ragged and tiny sizes", "[kernels][mse]") {
  const Shape shape = GENERATE(Shape{}, Shape{1}, Shape{3, 7}, Shape{2, 5, 33}, Shape{0, 3});
  check_op({.name = "mse",
            .inputs = {{.name = "x", .shape = shape}, {.name = "target", .shape = shape}},
            .run = [](const std::vector<Tensor>& in) { return mse(in[0], in[1]).sum; },
            .reference =
                [](const std::vector<std::vector<double>>& in) {
                  double sum = 0;
                  for (std::size_t i = 0; i < in[0].size(); ++i)
                    sum += (in[0][i] - in[1][i]) * (in[0][i] - in[1][i]);
                  return std::vector<double>{sum};
                },
            .gradient_tolerance_f64 = 1e-6});
}

TEST_CASE("mse: long sums keep their digits, in several runs", "[kernels][mse]") {
  const std::int64_t n = 3 * kernels::kMseRun * 4 + 5;
  const Loss loss = mse(Tensor::from(std::vector<float>(static_cast<std::size_t>(n), 0.1f), {n}),
                        Tensor::zeros({n}, DType::kF32));
  const double each = static_cast<double>(0.1f) * static_cast<double>(0.1f);
  CHECK(std::abs(loss.sum.item() / (each * static_cast<double>(n)) - 1) < 1e-6);
  CHECK(loss.weight.item() == static_cast<double>(n));
}

TEST_CASE("B02: the sum over any split of a window is the same, and so is its weight",
          "[kernels][mse]") {
  std::vector<double> x, t;
  for (int i = 0; i < 64; ++i) {
    x.push_back(std::sin(i));
    t.push_back(std::cos(i));
  }
  const Loss whole = mse(Tensor::from(x, {64}), Tensor::from(t, {64}));
  for (const std::int64_t k : {1, 2, 4, 8}) {
    double sum = 0, weight = 0;
    const std::int64_t size = 64 / k;
    for (std::int64_t m = 0; m < k; ++m) {
      const Loss part = mse(Tensor::from(x, {64}).window(m * size, {size}),
                            Tensor::from(t, {64}).window(m * size, {size}));
      sum += part.sum.item();
      weight += part.weight.item();
    }
    CHECK(std::abs(sum / weight / (whole.sum.item() / whole.weight.item()) - 1) < 1e-14);
  }
}

TEST_CASE("mse: windows may begin anywhere", "[kernels][mse]") {
  const Tensor x = shifted({5000}), y = x.clone(), t = Tensor::zeros({5000}, DType::kF32);
  CHECK(mse(x, t).sum.item() == mse(y, t).sum.item());
  CHECK(mse(t, x).sum.item() == mse(y, t).sum.item());
}

TEST_CASE("mse: nothing gives (0, 0); NaN stays", "[kernels][mse]") {
  const Loss none = mse(Tensor::zeros({0}, DType::kF32), Tensor::zeros({0}, DType::kF32));
  CHECK(none.sum.item() == 0);
  CHECK(none.weight.item() == 0);
  CHECK(
      std::isnan(mse(Tensor::from(std::vector<float>{1, NAN}, {2}), Tensor::zeros({2}, DType::kF32))
                     .sum.item()));
}

TEST_CASE("mse: errors say what came", "[kernels][mse]") {
  const Tensor x = Tensor::zeros({2}, DType::kF32);
  CHECK(error_of([&] { mse(x, Tensor{}); }) == "mse: target is undefined");
  CHECK(error_of([&] { mse(x, Tensor::zeros({3}, DType::kF32)); }) ==
        "mse: target must have shape (2,), got (3,) (the shape of x)");
  CHECK(error_of([&] { mse(x, Tensor::zeros({2}, DType::kF64)); }) ==
        "mse: target is float64, x is float32; cast one of them");
}

#include <cmath>
#include <accrue/core/parallel.h>
#include <accrue/core/random.h>
#include <accrue/kernels/sum/sum.h>
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

TEST_CASE("sum and mean: all elements", "[kernels][sum]") {
  const Shape shape = GENERATE(Shape{}, Shape{1}, Shape{3, 7}, Shape{2, 5, 33});
  const bool divide = GENERATE(false, true);
  check_op({.name = divide ? "mean" : "sum",
            .inputs = {{.name = "x", .shape = shape}},
            .run = [=](const std::vector<Tensor>& in) { return divide ? mean(in[0]) : sum(in[0]); },
            .reference =
                [=](const std::vector<std::vector<double>>& in) {
                  double s = 0;
                  for (const double v : in[0]) s += v;
                  return std::vector<double>{divide ? s / static_cast<double>(in[0].size()) : s};
                }});
}

TEST_CASE("sum and mean: one dimension", "[kernels][sum]") {
  struct Dim {
    Shape shape;
    int dim;
    std::int64_t outer, n, inner;
  };
  const Dim d = GENERATE(Dim{{4}, 0, 1, 4, 1}, Dim{{3, 7}, 0, 1, 3, 7}, Dim{{3, 7}, -1, 3, 7, 1},
                         Dim{{2, 5, 33}, 1, 2, 5, 33}, Dim{{2, 150, 3}, -2, 2, 150, 3},
                         Dim{{0, 3}, 1, 0, 3, 1}, Dim{{3, 0}, 0, 1, 3, 0}, Dim{{1, 1}, 0, 1, 1, 1});
  const bool divide = GENERATE(false, true);
  check_op({.name = divide ? "mean" : "sum",
            .inputs = {{.name = "x", .shape = d.shape}},
            .run =
                [=](const std::vector<Tensor>& in) {
                  return divide ? mean(in[0], d.dim) : sum(in[0], d.dim);
                },
            .reference =
                [=](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y(static_cast<std::size_t>(d.outer * d.inner), 0.0);
                  for (std::int64_t o = 0; o < d.outer; ++o)
                    for (std::int64_t k = 0; k < d.n; ++k)
                      for (std::int64_t i = 0; i < d.inner; ++i)
                        y[static_cast<std::size_t>(o * d.inner + i)] +=
                            in[0][static_cast<std::size_t>((o * d.n + k) * d.inner + i)] /
                            (divide ? static_cast<double>(d.n) : 1.0);
                  return y;
                }});
}

TEST_CASE("sum: empty sums are 0, empty means NaN, infinities and NaN pass", "[kernels][sum]") {
  const Tensor none = Tensor::zeros({0, 3}, DType::kF32);
  CHECK(sum(none).item() == 0);
  CHECK(std::isnan(mean(none).item()));
  CHECK(sum(none, 0).to_vector<float>() == std::vector<float>{0, 0, 0});
  CHECK(sum(Tensor::from(std::vector<float>{1, INFINITY}, {2})).item() == INFINITY);
  CHECK(std::isnan(sum(Tensor::from(std::vector<float>{1, NAN}, {2})).item()));
}

TEST_CASE("sum: a million numbers keep their digits, the same bits for any thread count",
          "[kernels][sum]") {
  const Shape shape = GENERATE(Shape{1000003}, Shape{1, 1000003}, Shape{7, 142858});
  std::vector<float> x(static_cast<std::size_t>(shape.numel()));
  double want = 0;
  float naive = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(philox4x32({static_cast<std::uint32_t>(i), 0, 0, 0}, {1, 2})[0] *
                              0x1p-32);
    want += static_cast<double>(x[i]);
    naive += x[i];
  }
  const Tensor t = Tensor::from(x, shape);
  const int threads = num_threads();
  set_num_threads(1);
  const double one = sum(t).item();
  const auto rows = sum(t, -1).to_vector<float>(), cols = sum(t, 0).to_vector<float>();
  for (const int n : {2, 7}) {
    set_num_threads(n);
    CHECK(sum(t).item() == one);
    CHECK(sum(t, -1).to_vector<float>() == rows);
    CHECK(sum(t, 0).to_vector<float>() == cols);
    if (!default_device().is_cpu()) break;  // they are the cpu's
  }
  set_num_threads(threads);
  CHECK(std::abs(one - want) <= 1e-7 * want);
  CHECK(std::abs(static_cast<double>(naive) - want) > 2e-6 * want);
  double total = 0;
  for (const float r : rows) total += static_cast<double>(r);
  CHECK(std::abs(total - want) <= 1e-7 * want);
}

TEST_CASE("sum: a window may begin anywhere", "[kernels][sum]") {
  const Tensor x = shifted({3, 20000}), y = x.clone();
  CHECK(sum(x).item() == sum(y).item());
  CHECK(sum(x, 0).to_vector<float>() == sum(y, 0).to_vector<float>());
  CHECK(sum(x, 1).to_vector<float>() == sum(y, 1).to_vector<float>());
}

TEST_CASE("sum: errors say what came", "[kernels][sum]") {
  CHECK(error_of([] { sum(Tensor{}); }) == "sum: x is undefined");
  CHECK(error_of([] { mean(Tensor::zeros({2}, DType::kI32)); }) ==
        "mean: x must be of floating dtype, got int32");
  CHECK(error_of([] {
          mean(Tensor::zeros({2, 3}, DType::kF32), 2);
        }) == "mean: dimension 2 of x, whose shape is (2, 3)");
}

#include <cmath>
#include <accrue/kernels/gelu/gelu.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("gelu: both variants, ragged and tiny sizes", "[kernels][gelu]") {
  const Shape shape = GENERATE(Shape{1}, Shape{3, 7}, Shape{2, 5, 33}, Shape{0});
  const Gelu kind = GENERATE(Gelu::kTanh, Gelu::kExact);
  check_op({.name = "gelu",
            .inputs = {{.name = "x", .shape = shape, .low = -6, .high = 6}},
            .run = [=](const std::vector<Tensor>& in) { return gelu(in[0], kind); },
            .reference =
                [=](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y;
                  for (const double x : in[0])
                    y.push_back(
                        kind == Gelu::kTanh
                            ? 0.5 * x *
                                  (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)))
                            : 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))));
                  return y;
                }});
}

TEST_CASE("gelu: far tails, infinities and NaN", "[kernels][gelu]") {
  const float inf = INFINITY;
  const std::vector<float> x{-1e30f, -50.0f, 50.0f, 1e30f, inf, NAN};
  const auto y = gelu(Tensor::from(x, {6}), GENERATE(Gelu::kTanh, Gelu::kExact)).to_vector<float>();
  CHECK(y[1] == 0.0f);
  CHECK(y[2] == 50.0f);
  CHECK(y[3] == 1e30f);
  CHECK(y[4] == inf);
  CHECK(std::isnan(y[5]));
}

TEST_CASE("gelu: errors say what came", "[kernels][gelu]") {
  CHECK(error_of([] { gelu(Tensor{}); }) == "gelu: x is undefined");
  CHECK(error_of([] { gelu(Tensor::zeros({2}, DType::kI32)); }) ==
        "gelu: x must be of floating dtype, got int32");
}

#include <cmath>
#include <accrue/kernels/silu/silu.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("silu: ragged and tiny sizes", "[kernels][silu]") {
  const Shape shape = GENERATE(Shape{1}, Shape{3, 7}, Shape{2, 5, 33}, Shape{0});
  check_op({.name = "silu",
            .inputs = {{.name = "x", .shape = shape, .low = -8, .high = 8}},
            .run = [](const std::vector<Tensor>& in) { return silu(in[0]); },
            .reference =
                [](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y = in[0];
                  for (double& v : y) v = v / (1 + std::exp(-v));
                  return y;
                }});
}

TEST_CASE("silu: far tails, infinities and NaN", "[kernels][silu]") {
  const std::vector<float> x{-1e30f, -200.0f, 200.0f, 1e30f, INFINITY, NAN};
  const auto y = silu(Tensor::from(x, {6})).to_vector<float>();
  CHECK(y[0] == 0.0f);
  CHECK(y[1] == 0.0f);
  CHECK(y[2] == 200.0f);
  CHECK(y[3] == 1e30f);
  CHECK(y[4] == INFINITY);
  CHECK(std::isnan(y[5]));
}

TEST_CASE("silu: errors say what came", "[kernels][silu]") {
  CHECK(error_of([] { silu(Tensor{}); }) == "silu: x is undefined");
  CHECK(error_of([] { silu(Tensor::zeros({2}, DType::kI32)); }) ==
        "silu: x must be of floating dtype, got int32");
}

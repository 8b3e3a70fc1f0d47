#include <cmath>
#include <accrue/kernels/scale/scale.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("scale: ragged and tiny sizes", "[kernels][scale]") {
  const Shape shape = GENERATE(Shape{1}, Shape{3, 7}, Shape{2, 5, 33}, Shape{0}, Shape{});
  const double factor = GENERATE(-1.5, 0.0, 1.0 / 3.0);
  check_op({.name = "scale",
            .inputs = {{.name = "x", .shape = shape}},
            .run = [=](const std::vector<Tensor>& in) { return scale(in[0], factor); },
            .reference =
                [=](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y = in[0];
                  for (double& v : y) v *= factor;
                  return y;
                }});
}

TEST_CASE("scale: special values and errors", "[kernels][scale]") {
  const auto y = scale(Tensor::from(std::vector<float>{INFINITY, NAN}, {2}), -2).to_vector<float>();
  CHECK(y[0] == -INFINITY);
  CHECK(std::isnan(y[1]));
  CHECK(error_of([] { scale(Tensor{}, 2); }) == "scale: x is undefined");
  CHECK(error_of([] { scale(Tensor::zeros({2}, DType::kI64), 2); }) ==
        "scale: x must be of floating dtype, got int64");
}

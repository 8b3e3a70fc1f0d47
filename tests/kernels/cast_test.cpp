#include <cmath>
#include <limits>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/cast/cast.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("cast: differentiable between floating dtypes", "[kernels][cast]") {
  const DType to = GENERATE(DType::kF32, DType::kBF16, DType::kF64);
  const Shape shape = GENERATE(Shape{1}, Shape{3, 7}, Shape{0});
  std::vector<double> values;  // every dtype holds them and their neighbours at distance 1/2
  for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(static_cast<double>(i % 9 - 4));
  check_op(
      {.name = "cast",
       .inputs = {{.name = "x", .shape = shape, .values = values}},
       .run = [=](const std::vector<Tensor>& in) { return add(cast(in[0], to), cast(in[0], to)); },
       .reference =
           [](const std::vector<std::vector<double>>& in) {
             std::vector<double> y = in[0];
             for (double& v : y) v *= 2;
             return y;
           },
       .difference_step = 0.5});
}

TEST_CASE("cast: rounds to nearest even, keeps infinities and NaN", "[kernels][cast]") {
  const float tie = 1.0f + 0x1p-8f, above = 1.0f + 3 * 0x1p-8f;
  const float huge = std::numeric_limits<float>::max();
  const Tensor x = Tensor::from(std::vector<float>{tie, above, huge, -INFINITY, NAN}, {5});
  const auto y = cast(cast(x, DType::kBF16), DType::kF32).to_vector<float>();
  CHECK(y[0] == 1.0f);
  CHECK(y[1] == 1.0f + 4 * 0x1p-8f);
  CHECK(y[2] == INFINITY);
  CHECK(y[3] == -INFINITY);
  CHECK(std::isnan(y[4]));
  const Tensor d = Tensor::from(std::vector<double>{0.1, 1e300}, {2});
  CHECK(cast(d, DType::kF32).to_vector<float>() == std::vector<float>{0.1f, INFINITY});
  CHECK(cast(x, DType::kF64).to_vector<double>()[0] == 1.00390625);
}

TEST_CASE("cast: to its own dtype is the tensor itself", "[kernels][cast]") {
  const Tensor x = Tensor::zeros({3}, DType::kF32);
  CHECK(cast(x, DType::kF32).data<float>() == x.data<float>());
}

TEST_CASE("cast: errors say what came", "[kernels][cast]") {
  CHECK(error_of([] { cast(Tensor{}, DType::kF32); }) == "cast: x is undefined");
  CHECK(error_of([] { cast(Tensor::zeros({2}, DType::kI32), DType::kF32); }) ==
        "cast: x must be of floating dtype, got int32");
  CHECK(error_of([] { cast(Tensor::zeros({2}, DType::kF32), DType::kI32); }) ==
        "cast: the target must be a floating dtype, got int32");
}

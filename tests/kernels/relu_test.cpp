#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/relu/relu.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("relu: ragged and tiny sizes", "[kernels][relu]") {
  const Shape shape = GENERATE(Shape{1}, Shape{3, 7}, Shape{2, 5, 33}, Shape{0});
  check_op({.name = "relu",
            .inputs = {{.name = "x", .shape = shape, .low = -3, .high = 3}},
            .run = [](const std::vector<Tensor>& in) { return relu(in[0]); },
            .reference =
                [](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y = in[0];
                  for (double& v : y) v = v > 0 ? v : 0;
                  return y;
                }});
}

TEST_CASE("relu: zero, infinities and NaN, forward and backward", "[kernels][relu]") {
  Tensor x = Tensor::from(std::vector<float>{0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-30f}, {6});
  Tape tape;
  tape.watch(x);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = relu(x);
  }
  const auto v = y.to_vector<float>();
  CHECK(v[0] == 0.0f);
  CHECK(v[1] == 0.0f);
  CHECK(v[2] == INFINITY);
  CHECK(v[3] == 0.0f);
  CHECK(std::isnan(v[4]));
  tape.backward_from(y, Tensor::from(std::vector<float>(6, 2.0f), {6}));
  CHECK(tape.gradient(x).to_vector<float>() == std::vector<float>{0, 0, 2, 0, 2, 2});
}

TEST_CASE("relu: an infinite or NaN gradient stops where nothing passes", "[kernels][relu]") {
  Tensor x = Tensor::from(std::vector<float>{-1, -1, 0, 1}, {4});
  Tape tape;
  tape.watch(x);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = relu(x);
  }
  tape.backward_from(y, Tensor::from(std::vector<float>{INFINITY, NAN, -INFINITY, 3}, {4}));
  CHECK(tape.gradient(x).to_vector<float>() == std::vector<float>{0, 0, 0, 3});
}

TEST_CASE("relu: keeps its result, not its input", "[kernels][relu]") {
  Tensor x = Tensor::zeros({4}, DType::kF32);
  Tape tape;
  tape.watch(x);
  const Tape::Scope on(tape);
  const Tensor y = relu(x);
  CHECK(x.use_count() == 1);
  CHECK(y.use_count() == 2);
}

TEST_CASE("relu: errors say what came", "[kernels][relu]") {
  CHECK(error_of([] { relu(Tensor{}); }) == "relu: x is undefined");
  CHECK(error_of([] { relu(Tensor::zeros({2}, DType::kI32)); }) ==
        "relu: x must be of floating dtype, got int32");
}

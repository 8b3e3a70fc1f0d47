#include <cmath>
#include <accrue/kernels/swiglu/swiglu.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("swiglu: ragged and tiny sizes", "[kernels][swiglu]") {
  const Shape shape = GENERATE(Shape{1}, Shape{3, 7}, Shape{2, 5, 33}, Shape{0});
  check_op({.name = "swiglu",
            .inputs = {{.name = "gate", .shape = shape, .low = -6, .high = 6},
                       {.name = "up", .shape = shape}},
            .run = [](const std::vector<Tensor>& in) { return swiglu(in[0], in[1]); },
            .reference =
                [](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y;
                  for (std::size_t i = 0; i < in[0].size(); ++i)
                    y.push_back(in[0][i] / (1 + std::exp(-in[0][i])) * in[1][i]);
                  return y;
                }});
}

TEST_CASE("swiglu: errors say what came", "[kernels][swiglu]") {
  const Tensor gate = Tensor::zeros({2, 3}, DType::kF32);
  CHECK(error_of([&] { swiglu(Tensor{}, gate); }) == "swiglu: gate is undefined");
  CHECK(error_of([&] { swiglu(gate, Tensor{}); }) == "swiglu: up is undefined");
  CHECK(error_of([&] { swiglu(gate, Tensor::zeros({3}, DType::kF32)); }) ==
        "swiglu: up must have shape (2, 3), got (3,) (the shape of gate)");
  CHECK(error_of([&] {
          swiglu(gate, Tensor::zeros({2, 3}, DType::kBF16));
        }) == "swiglu: up is bfloat16, gate is float32; cast one of them");
}

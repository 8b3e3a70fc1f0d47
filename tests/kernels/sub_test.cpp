#include <accrue/kernels/sub/sub.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("sub: same shape and broadcast over leading dimensions", "[kernels][sub]") {
  using Pair = std::pair<Shape, Shape>;
  const auto [a, b] =
      GENERATE(Pair{{1}, {1}}, Pair{{3, 7}, {3, 7}}, Pair{{2, 5, 33}, {5, 33}}, Pair{{4, 3}, {3}},
               Pair{{130, 9}, {9}}, Pair{{5, 7}, {}}, Pair{{40, 1}, {1}}, Pair{{6, 16}, {16}},
               Pair{{0}, {0}}, Pair{{0, 3}, {3}});
  check_op({.name = "sub",
            .inputs = {{.name = "a", .shape = a}, {.name = "b", .shape = b}},
            .run = [](const std::vector<Tensor>& in) { return sub(in[0], in[1]); },
            .reference =
                [](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y;
                  for (std::size_t i = 0; i < in[0].size(); ++i)
                    y.push_back(in[0][i] - in[1][i % in[1].size()]);
                  return y;
                }});
}

TEST_CASE("sub: errors say what came", "[kernels][sub]") {
  const Tensor a = Tensor::zeros({4, 3}, DType::kF32);
  CHECK(error_of([&] { sub(a, Tensor{}); }) == "sub: b is undefined");
  CHECK(error_of([&] {
          sub(a, Tensor::zeros({4, 3}, DType::kI32));
        }) == "sub: b must be of floating dtype, got int32");
  CHECK(error_of([&] { sub(a, Tensor::zeros({3}, DType::kBF16)); }) ==
        "sub: b is bfloat16, a is float32; cast one of them");
  CHECK(error_of([&] { sub(a, Tensor::zeros({4}, DType::kF32)); }) ==
        "sub: b must have the shape of a or of its last dimensions, a is (4, 3), b is (4,)");
  CHECK(error_of([&] { sub(a, Tensor::zeros({3}, DType::kF32, Device::meta())); }) ==
        "sub: b is on meta, a on " + to_string(default_device()) + "; move one of them");
}

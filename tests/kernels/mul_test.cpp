#include <accrue/core/tape.h>
#include <accrue/kernels/mul/mul.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("mul: same shape and broadcast over leading dimensions", "[kernels][mul]") {
  using Pair = std::pair<Shape, Shape>;
  const auto [a, b] =
      GENERATE(Pair{{1}, {1}}, Pair{{3, 7}, {3, 7}}, Pair{{2, 5, 33}, {5, 33}}, Pair{{4, 3}, {3}},
               Pair{{130, 9}, {9}}, Pair{{5, 7}, {}}, Pair{{40, 1}, {1}}, Pair{{6, 16}, {16}},
               Pair{{0}, {0}}, Pair{{0, 3}, {3}});
  check_op({.name = "mul",
            .inputs = {{.name = "a", .shape = a}, {.name = "b", .shape = b}},
            .run = [](const std::vector<Tensor>& in) { return mul(in[0], in[1]); },
            .reference =
                [](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y;
                  for (std::size_t i = 0; i < in[0].size(); ++i)
                    y.push_back(in[0][i] * in[1][i % in[1].size()]);
                  return y;
                }});
}

TEST_CASE("mul: errors say what came", "[kernels][mul]") {
  const Tensor a = Tensor::zeros({4, 3}, DType::kF32);
  CHECK(error_of([&] { mul(a, Tensor{}); }) == "mul: b is undefined");
  CHECK(error_of([&] {
          mul(a, Tensor::zeros({4, 3}, DType::kI32));
        }) == "mul: b must be of floating dtype, got int32");
  CHECK(error_of([&] { mul(a, Tensor::zeros({3}, DType::kBF16)); }) ==
        "mul: b is bfloat16, a is float32; cast one of them");
  CHECK(error_of([&] { mul(a, Tensor::zeros({4}, DType::kF32)); }) ==
        "mul: b must have the shape of a or of its last dimensions, a is (4, 3), b is (4,)");
  CHECK(error_of([&] { mul(a, Tensor::zeros({3}, DType::kF32, Device::meta())); }) ==
        "mul: b is on meta, a on " + to_string(default_device()) + "; move one of them");
}

TEST_CASE("mul: keeps only the factor that a wanted gradient needs", "[kernels][mul]") {
  Tensor x = Tensor::zeros({4}, DType::kF32);
  const Tensor mask = Tensor::zeros({4}, DType::kF32);
  Tape tape;
  tape.watch(x);
  const Tape::Scope on(tape);
  const Tensor y = mul(x, mask);
  CHECK(x.use_count() == 1);
  CHECK(mask.use_count() == 2);
}

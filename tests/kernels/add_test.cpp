#include <cmath>
#include <accrue/core/parallel.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/add/add.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("add: same shape and broadcast over leading dimensions", "[kernels][add]") {
  using Pair = std::pair<Shape, Shape>;
  const auto [a, b] =
      GENERATE(Pair{{1}, {1}}, Pair{{3, 7}, {3, 7}}, Pair{{2, 5, 33}, {5, 33}}, Pair{{4, 3}, {3}},
               Pair{{130, 9}, {9}}, Pair{{5, 7}, {}}, Pair{{40, 1}, {1}}, Pair{{6, 16}, {16}},
               Pair{{0}, {0}}, Pair{{0, 3}, {3}});
  check_op({.name = "add",
            .inputs = {{.name = "a", .shape = a}, {.name = "b", .shape = b}},
            .run = [](const std::vector<Tensor>& in) { return add(in[0], in[1]); },
            .reference =
                [](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y;
                  for (std::size_t i = 0; i < in[0].size(); ++i)
                    y.push_back(in[0][i] + in[1][i % in[1].size()]);
                  return y;
                }});
}

TEST_CASE("add: errors say what came", "[kernels][add]") {
  const Tensor a = Tensor::zeros({4, 3}, DType::kF32);
  CHECK(error_of([&] { add(a, Tensor{}); }) == "add: b is undefined");
  CHECK(error_of([&] {
          add(a, Tensor::zeros({4, 3}, DType::kI32));
        }) == "add: b must be of floating dtype, got int32");
  CHECK(error_of([&] { add(a, Tensor::zeros({3}, DType::kBF16)); }) ==
        "add: b is bfloat16, a is float32; cast one of them");
  CHECK(error_of([&] { add(a, Tensor::zeros({4}, DType::kF32)); }) ==
        "add: b must have the shape of a or of its last dimensions, a is (4, 3), b is (4,)");
  CHECK(error_of([&] { add(a, Tensor::zeros({3}, DType::kF32, Device::meta())); }) ==
        "add: b is on meta, a on " + to_string(default_device()) + "; move one of them");
}

TEST_CASE("add: the gradient of a wide residual stream is shared, not copied", "[kernels][add]") {
  Tensor x = Tensor::zeros({64, 1024}, DType::kF32), f = Tensor::zeros({64, 1024}, DType::kF32);
  const std::int64_t bytes = x.view().bytes();
  Tape tape;
  tape.watch(x);
  tape.watch(f);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = add(x, f);
  }
  Allocator& allocator = Allocator::of(Device::cpu());
  const Tensor seed = Tensor::zeros({64, 1024}, DType::kF32);
  allocator.reset_peak();
  const std::int64_t before = allocator.stats().live;
  tape.backward_from(y, seed);
  CHECK(allocator.stats().peak - before < bytes);
  CHECK(tape.gradient(x).data<float>() == seed.data<float>());
  CHECK(tape.gradient(f).data<float>() == seed.data<float>());
}

TEST_CASE("add: a broadcast gradient over many rows keeps its digits and its bits",
          "[kernels][add]") {
  const std::int64_t rows = 20000, cols = GENERATE(1, 5, 300);
  std::vector<float> dy(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < dy.size(); ++i) dy[i] = 0.1f + 0.001f * static_cast<float>(i % 97);
  std::vector<double> want(static_cast<std::size_t>(cols), 0.0);
  for (std::size_t i = 0; i < dy.size(); ++i)
    want[i % static_cast<std::size_t>(cols)] += static_cast<double>(dy[i]);
  const auto gradient = [&] {
    Tensor b = Tensor::zeros({cols}, DType::kF32);
    Tape tape;
    tape.watch(b);
    Tensor y;
    {
      const Tape::Scope on(tape);
      y = add(Tensor::zeros({rows, cols}, DType::kF32), b);
    }
    tape.backward_from(y, Tensor::from(dy, {rows, cols}));
    return tape.gradient(b).to_vector<float>();
  };
  const int threads = num_threads();
  set_num_threads(1);
  const auto one = gradient();
  for (const int n : {2, 7}) {
    set_num_threads(n);
    CHECK(gradient() == one);
    if (!default_device().is_cpu()) break;  // they are the cpu's
  }
  set_num_threads(threads);
  for (std::size_t j = 0; j < one.size(); ++j)
    CHECK(std::abs(static_cast<double>(one[j]) - want[j]) <= 5e-7 * want[j]);
}

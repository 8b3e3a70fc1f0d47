#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/rms_norm/rms_norm.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("rms_norm: ragged and tiny sizes", "[kernels][rms_norm]") {
  const Shape shape = GENERATE(Shape{7}, Shape{1, 1}, Shape{3, 7}, Shape{2, 5, 33}, Shape{70, 2},
                               Shape{0, 4}, Shape{3, 0});
  check_op({.name = "rms_norm",
            .inputs = {{.name = "x", .shape = shape},
                       {.name = "weight", .shape = {shape.cols()}, .low = 0.5, .high = 2}},
            .run = [](const std::vector<Tensor>& in) { return rms_norm(in[0], in[1], 1e-2); },
            .reference =
                [](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y(in[0].size());
                  const std::size_t cols = in[1].size();
                  for (std::size_t begin = 0; begin < y.size(); begin += cols) {
                    double squares = 0;
                    for (std::size_t j = 0; j < cols; ++j)
                      squares += in[0][begin + j] * in[0][begin + j] / static_cast<double>(cols);
                    for (std::size_t j = 0; j < cols; ++j)
                      y[begin + j] = in[0][begin + j] / std::sqrt(squares + 1e-2) * in[1][j];
                  }
                  return y;
                }});
}

TEST_CASE("rms_norm: many rows, so that the weight gradient has several partial rows",
          "[kernels][rms_norm]") {
  const std::int64_t rows = 1500, cols = 48;
  std::vector<float> x;
  for (std::int64_t i = 0; i < rows * cols; ++i)
    x.push_back(static_cast<float>(std::sin(static_cast<double>(i) * 0.7) * 2));
  Tensor in = Tensor::from(x, {rows, cols});
  Tensor weight = Tensor::from(std::vector<float>(static_cast<std::size_t>(cols), 1.0f), {cols});
  Tape tape;
  tape.watch(weight);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = rms_norm(in, weight);
  }
  const auto xhat = y.to_vector<float>();
  tape.backward_from(y, in);
  const auto got = tape.gradient(weight).to_vector<float>();
  for (std::size_t c = 0; c < got.size(); ++c) {
    double want = 0;
    for (std::size_t i = c; i < x.size(); i += got.size())
      want += static_cast<double>(x[i]) * static_cast<double>(xhat[i]);
    CHECK(std::abs(static_cast<double>(got[c]) - want) < 2e-6 * std::abs(want));
  }
}

TEST_CASE("rms_norm: zero rows and NaN", "[kernels][rms_norm]") {
  std::vector<float> x(16, 0.0f);
  x[9] = NAN;
  const auto y = rms_norm(Tensor::from(x, {2, 8}), Tensor::from(std::vector<float>(8, 1.0f), {8}))
                     .to_vector<float>();
  for (std::size_t i = 0; i < 8; ++i) CHECK(y[i] == 0.0f);
  for (std::size_t i = 8; i < 16; ++i) CHECK(std::isnan(y[i]));
}

TEST_CASE("rms_norm: errors say what came", "[kernels][rms_norm]") {
  const Tensor x = Tensor::zeros({2, 3}, DType::kF32), weight = Tensor::zeros({3}, DType::kF32);
  CHECK(error_of([&] { rms_norm(x, Tensor{}); }) == "rms_norm: weight is undefined");
  CHECK(error_of([&] { rms_norm(x, Tensor::zeros({2}, DType::kF32)); }) ==
        "rms_norm: weight must have shape (3,), got (2,) (the last dimension of x)");
  CHECK(error_of([&] { rms_norm(x, Tensor::zeros({3}, DType::kF64)); }) ==
        "rms_norm: weight is float64, x is float32; cast one of them");
  CHECK(error_of([&] { rms_norm(x, weight, -0.5); }) ==
        "rms_norm: eps must be finite and not negative, got -0.5");
}

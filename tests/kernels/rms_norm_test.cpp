#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/rms_norm/rms_norm.h>
#include "tests/kernels/residual_norm.h"

using namespace accrue;
using namespace accrue::test;

namespace {
std::vector<double> reference(const std::vector<double>& x, const std::vector<double>& weight) {
  std::vector<double> y(x.size());
  const std::size_t cols = weight.size();
  for (std::size_t begin = 0; begin < y.size(); begin += cols) {
    double squares = 0;
    for (std::size_t j = 0; j < cols; ++j)
      squares += x[begin + j] * x[begin + j] / static_cast<double>(cols);
    for (std::size_t j = 0; j < cols; ++j)
      y[begin + j] = x[begin + j] / std::sqrt(squares + 1e-2) * weight[j];
  }
  return y;
}
}  // namespace

TEST_CASE("rms_norm: ragged and tiny sizes", "[kernels][rms_norm]") {
  const Shape shape = GENERATE(Shape{7}, Shape{1, 1}, Shape{3, 7}, Shape{2, 5, 33}, Shape{70, 2},
                               Shape{0, 4}, Shape{3, 0});
  check_op(
      {.name = "rms_norm",
       .inputs = {{.name = "x", .shape = shape},
                  {.name = "weight", .shape = {shape.cols()}, .low = 0.5, .high = 2}},
       .run = [](const std::vector<Tensor>& in) { return rms_norm(in[0], in[1], 1e-2); },
       .reference =
           [](const std::vector<std::vector<double>>& in) { return reference(in[0], in[1]); }});
}

TEST_CASE("residual_rms_norm: x + f and its norm", "[kernels][rms_norm]") {
  const Shape shape = GENERATE(Shape{7}, Shape{3, 7}, Shape{2, 5, 33});
  const bool sum_too = GENERATE(false, true);
  check_op({.name = "residual_rms_norm",
            .inputs = {{.name = "x", .shape = shape},
                       {.name = "f", .shape = shape},
                       {.name = "weight", .shape = {shape.cols()}, .low = 0.5, .high = 2}},
            .run =
                [=](const std::vector<Tensor>& in) {
                  const SumAndNorm r = residual_rms_norm(in[0], in[1], in[2], 1e-2);
                  return sum_too ? add(r.sum, r.y) : r.y;
                },
            .reference =
                [=](const std::vector<std::vector<double>>& in) {
                  std::vector<double> sum = in[0];
                  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += in[1][i];
                  std::vector<double> y = reference(sum, in[2]);
                  for (std::size_t i = 0; i < y.size() && sum_too; ++i) y[i] += sum[i];
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

TEST_CASE("residual_rms_norm: the bits of residual_add and rms_norm", "[kernels][rms_norm]") {
  const Shape shape = GENERATE(from_range(residual_norm_shapes()));
  const DType dtype = GENERATE(DType::kF32, DType::kBF16, DType::kF64);
  const std::int64_t shift = GENERATE(0, 1);
  CAPTURE(shape, dtype, shift);
  check_residual_norm(
      shape, dtype, shift,
      [](const Tensor& x, const Tensor& f, const Tensor& w) { return residual_rms_norm(x, f, w); },
      [](const Tensor& sum, const Tensor& w) { return rms_norm(sum, w); });
}

TEST_CASE("residual_rms_norm: sum may lie over x, and y over f", "[kernels][rms_norm]") {
  const Shape shape = GENERATE(Shape{3, 7}, Shape{3, 768}, Shape{1, 16640});
  const Tensor x = residual_wave(shape, DType::kF32, 0.3, 0);
  const Tensor f = residual_wave(shape, DType::kF32, 0.9, 0);
  const Tensor w = residual_wave({shape.cols()}, DType::kF32, 0.1, 0);
  const Tensor rstd = Tensor::empty({shape.rows()}, DType::kF32);
  const SumAndNorm want = residual_rms_norm(x, f, w);
  kernels::rms_norm_forward(
      x.stream(),
      {.x = x, .weight = w, .y = f.view(), .rstd = rstd.view(), .f = f, .sum = x.view()});
  CHECK(x.to_vector<float>() == want.sum.to_vector<float>());
  CHECK(f.to_vector<float>() == want.y.to_vector<float>());
}

TEST_CASE("residual_rms_norm: errors say what came", "[kernels][rms_norm]") {
  const Tensor x = Tensor::zeros({2, 3}, DType::kF32), w = Tensor::zeros({3}, DType::kF32);
  CHECK(error_of([&] { residual_rms_norm(Tensor{}, x, w); }) ==
        "residual_rms_norm: x is undefined");
  CHECK(error_of([&] { residual_rms_norm(x, Tensor{}, w); }) ==
        "residual_rms_norm: f is undefined");
  CHECK(error_of([&] { residual_rms_norm(x, w, w); }) ==
        "residual_rms_norm: f must have shape (2, 3), got (3,) (the shape of x)");
  CHECK(error_of([&] {
          residual_rms_norm(x, Tensor::zeros({2, 3}, DType::kBF16), w);
        }) == "residual_rms_norm: f is bfloat16, x is float32; cast one of them");
  CHECK(error_of([&] { residual_rms_norm(x, x, Tensor{}); }) ==
        "residual_rms_norm: weight is undefined");
}

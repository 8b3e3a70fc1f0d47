#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/layer_norm/layer_norm.h>
#include "tests/kernels/residual_norm.h"

using namespace accrue;
using namespace accrue::test;

namespace {
using Values = std::vector<double>;

Values reference(const Values& x, const Values& weight, const Values& bias, double eps) {
  Values y(x.size());
  const std::size_t cols = weight.size();
  for (std::size_t begin = 0; begin < x.size(); begin += cols) {
    double mean = 0, variance = 0;
    for (std::size_t j = 0; j < cols; ++j) mean += x[begin + j] / static_cast<double>(cols);
    for (std::size_t j = 0; j < cols; ++j)
      variance += std::pow(x[begin + j] - mean, 2) / static_cast<double>(cols);
    for (std::size_t j = 0; j < cols; ++j)
      y[begin + j] = (x[begin + j] - mean) / std::sqrt(variance + eps) * weight[j] +
                     (bias.empty() ? 0.0 : bias[j]);
  }
  return y;
}

Tensor ones(std::int64_t n) {
  return Tensor::from(std::vector<float>(static_cast<std::size_t>(n), 1.0f), {n});
}
}  // namespace

TEST_CASE("layer_norm: ragged and tiny sizes, with and without bias", "[kernels][layer_norm]") {
  const Shape shape = GENERATE(Shape{7}, Shape{1, 1}, Shape{3, 7}, Shape{2, 5, 33}, Shape{70, 2},
                               Shape{0, 4}, Shape{3, 0});
  const bool has_bias = GENERATE(true, false);
  const Shape last{shape.cols()};
  std::vector<OpInput> inputs{{.name = "x", .shape = shape, .low = -2, .high = 3},
                              {.name = "weight", .shape = last, .low = 0.5, .high = 2}};
  if (has_bias) inputs.push_back({.name = "bias", .shape = last});
  check_op({.name = "layer_norm",
            .inputs = inputs,
            .run =
                [=](const std::vector<Tensor>& in) {
                  return layer_norm(in[0], in[1], has_bias ? in[2] : Tensor{}, 0.1);
                },
            .reference =
                [=](const std::vector<Values>& in) {
                  return reference(in[0], in[1], has_bias ? in[2] : Values{}, 0.1);
                }});
}

TEST_CASE("residual_layer_norm: x + f and its norm", "[kernels][layer_norm]") {
  const Shape shape = GENERATE(Shape{7}, Shape{3, 7}, Shape{2, 5, 33});
  const bool has_bias = GENERATE(true, false);
  const bool sum_too = GENERATE(false, true);
  const Shape last{shape.cols()};
  std::vector<OpInput> inputs{{.name = "x", .shape = shape, .low = -2, .high = 3},
                              {.name = "f", .shape = shape, .low = -2, .high = 3},
                              {.name = "weight", .shape = last, .low = 0.5, .high = 2}};
  if (has_bias) inputs.push_back({.name = "bias", .shape = last});
  check_op({.name = "residual_layer_norm",
            .inputs = inputs,
            .run =
                [=](const std::vector<Tensor>& in) {
                  const SumAndNorm r =
                      residual_layer_norm(in[0], in[1], in[2], has_bias ? in[3] : Tensor{}, 0.1);
                  return sum_too ? add(r.sum, r.y) : r.y;
                },
            .reference =
                [=](const std::vector<Values>& in) {
                  Values sum = in[0];
                  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += in[1][i];
                  Values y = reference(sum, in[2], has_bias ? in[3] : Values{}, 0.1);
                  for (std::size_t i = 0; i < y.size() && sum_too; ++i) y[i] += sum[i];
                  return y;
                }});
}

TEST_CASE("layer_norm: many rows, so that the weight gradient has several partial rows",
          "[kernels][layer_norm]") {
  const std::int64_t rows = 1500, cols = 48;
  std::vector<double> x, dy;
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    x.push_back(std::sin(static_cast<double>(i) * 0.7) * 2);
    dy.push_back(std::cos(static_cast<double>(i) * 1.3));
  }
  const auto gradients = [&](auto zero) {
    using T = decltype(zero);
    Tensor in = Tensor::from(std::vector<T>(x.begin(), x.end()), {rows, cols});
    Tensor weight = Tensor::from(std::vector<T>(static_cast<std::size_t>(cols), T(1)), {cols});
    Tensor bias = Tensor::from(std::vector<T>(static_cast<std::size_t>(cols), T(0)), {cols});
    Tape tape;
    tape.watch(weight);
    tape.watch(bias);
    Tensor y;
    {
      const Tape::Scope on(tape);
      y = layer_norm(in, weight, bias);
    }
    tape.backward_from(y, Tensor::from(std::vector<T>(dy.begin(), dy.end()), {rows, cols}));
    const auto w = tape.gradient(weight).template to_vector<T>();
    const auto b = tape.gradient(bias).template to_vector<T>();
    std::vector<double> out(w.begin(), w.end());
    out.insert(out.end(), b.begin(), b.end());
    return out;
  };
  const auto exact = gradients(0.0), single = gradients(0.0f);
  const Values unit(static_cast<std::size_t>(cols), 1.0);
  const Values xhat = reference(x, unit, {}, 1e-5);
  for (std::size_t c = 0; c < unit.size(); ++c) {
    double dweight = 0, dbias = 0;
    for (std::size_t i = c; i < x.size(); i += unit.size()) {
      dweight += dy[i] * xhat[i];
      dbias += dy[i];
    }
    CHECK(std::abs(exact[c] - dweight) < 1e-10);
    CHECK(std::abs(exact[unit.size() + c] - dbias) < 1e-10);
    CHECK(std::abs(single[c] - dweight) < 1e-3);
    CHECK(std::abs(single[unit.size() + c] - dbias) < 1e-3);
  }
}

TEST_CASE("B47: layer_norm keeps the digits of rows with a large mean", "[kernels][layer_norm]") {
  const auto [mean, want] = GENERATE(
      table<double, double>({{0, -1.3416}, {1e2, -1.3415}, {1e3, -1.3415}, {1e4, -1.3313}}));
  std::vector<float> x;
  for (int i = 0; i < 16; ++i) x.push_back(static_cast<float>(mean + i * 1e-3));
  Tensor in = Tensor::from(x, {1, 16});
  Tape tape;
  tape.watch(in);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = layer_norm(in, ones(16));
  }
  const auto got = y.to_vector<float>();
  CHECK(std::abs(static_cast<double>(got[0]) - want) < 1e-4);
  const Values exact = reference(Values(x.begin(), x.end()), Values(16, 1.0), {}, 1e-5);
  for (std::size_t i = 0; i < 16; ++i)
    CHECK(std::abs(static_cast<double>(got[i]) - exact[i]) < 1e-5);

  // The gradient in float32 against that of the same numbers in float64; it reaches hundreds.
  std::vector<float> dy;
  for (int i = 0; i < 16; ++i) dy.push_back(static_cast<float>((i * 5) % 7) - 3.0f);
  tape.backward_from(y, Tensor::from(dy, {1, 16}));
  Tensor in64 = Tensor::from(std::vector<double>(x.begin(), x.end()), {1, 16});
  Tape tape64;
  tape64.watch(in64);
  Tensor y64;
  {
    const Tape::Scope on(tape64);
    y64 = layer_norm(in64, Tensor::from(std::vector<double>(16, 1.0), {16}));
  }
  tape64.backward_from(y64, Tensor::from(std::vector<double>(dy.begin(), dy.end()), {1, 16}));
  const auto dx = tape.gradient(in).to_vector<float>();
  const auto dx64 = tape64.gradient(in64).to_vector<double>();
  for (std::size_t i = 0; i < 16; ++i) CHECK(std::abs(static_cast<double>(dx[i]) - dx64[i]) < 1e-2);
}

TEST_CASE("layer_norm: constant rows, huge values and NaN", "[kernels][layer_norm]") {
  std::vector<float> x(24, 1e10f);
  for (std::size_t i = 8; i < 16; ++i) x[i] = -3.0f;
  x[20] = NAN;
  const auto y = layer_norm(Tensor::from(x, {3, 8}), ones(8)).to_vector<float>();
  for (std::size_t i = 0; i < 16; ++i) CHECK(std::abs(y[i]) < 1e-3f);
  for (std::size_t i = 16; i < 24; ++i) CHECK(std::isnan(y[i]));
}

TEST_CASE("layer_norm: x, weight and bias may be one tensor", "[kernels][layer_norm]") {
  const std::vector<double> values{0.3, -1, 2, 0.5, 1.5};
  const auto f = [&](const std::vector<double>& v) {
    const Values y = reference(v, v, v, 1e-5);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * static_cast<double>(i + 1);
    return sum;
  };
  Tensor x = Tensor::from(values, {5});
  Tape tape;
  tape.watch(x);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = layer_norm(x, x, x);
  }
  tape.backward_from(y, Tensor::from(std::vector<double>{1, 2, 3, 4, 5}, {5}));
  const auto gradient = tape.gradient(x).to_vector<double>();
  for (std::size_t i = 0; i < 5; ++i) {
    auto up = values, down = values;
    up[i] += 1e-6;
    down[i] -= 1e-6;
    CHECK(std::abs(gradient[i] - (f(up) - f(down)) / 2e-6) < 1e-6);
  }
}

TEST_CASE("layer_norm: errors say what came", "[kernels][layer_norm]") {
  const Tensor x = Tensor::zeros({2, 3}, DType::kF32);
  CHECK(error_of([&] { layer_norm(Tensor{}, ones(3)); }) == "layer_norm: x is undefined");
  CHECK(error_of([&] { layer_norm(x, ones(2)); }) ==
        "layer_norm: weight must have shape (3,), got (2,) (the last dimension of x)");
  CHECK(error_of([&] { layer_norm(x, ones(3), ones(4)); }) ==
        "layer_norm: bias must have shape (3,), got (4,) (the last dimension of x)");
  CHECK(error_of([&] { layer_norm(x, Tensor::zeros({3}, DType::kBF16)); }) ==
        "layer_norm: weight is bfloat16, x is float32; cast one of them");
  CHECK(error_of([&] { layer_norm(x, ones(3), {}, -1); }) ==
        "layer_norm: eps must be finite and not negative, got -1");
  CHECK(error_of([&] { layer_norm(Tensor::zeros({}, DType::kF32), ones(1)); }) ==
        "layer_norm: x must have at least 1 dimension, got ()");
}

TEST_CASE("residual_layer_norm: the bits of residual_add and layer_norm", "[kernels][layer_norm]") {
  const Shape shape = GENERATE(from_range(residual_norm_shapes()));
  const DType dtype = GENERATE(DType::kF32, DType::kBF16, DType::kF64);
  const std::int64_t shift = GENERATE(0, 1);
  CAPTURE(shape, dtype, shift);
  check_residual_norm(
      shape, dtype, shift,
      [](const Tensor& x, const Tensor& f, const Tensor& w) {
        return residual_layer_norm(x, f, w, w);
      },
      [](const Tensor& sum, const Tensor& w) { return layer_norm(sum, w, w); });
}

TEST_CASE("residual_layer_norm: sum may lie over x, and y over f", "[kernels][layer_norm]") {
  const Shape shape = GENERATE(Shape{3, 7}, Shape{3, 768}, Shape{1, 16640});
  const Tensor x = residual_wave(shape, DType::kF32, 0.3, 0);
  const Tensor f = residual_wave(shape, DType::kF32, 0.9, 0);
  const Tensor w = residual_wave({shape.cols()}, DType::kF32, 0.1, 0);
  const Tensor mean = Tensor::empty({shape.rows()}, DType::kF32), rstd = mean.clone();
  const SumAndNorm want = residual_layer_norm(x, f, w, w);
  kernels::layer_norm_forward(x.stream(), {.x = x,
                                           .weight = w,
                                           .bias = w,
                                           .y = f.view(),
                                           .mean = mean.view(),
                                           .rstd = rstd.view(),
                                           .f = f,
                                           .sum = x.view()});
  CHECK(x.to_vector<float>() == want.sum.to_vector<float>());
  CHECK(f.to_vector<float>() == want.y.to_vector<float>());
}

TEST_CASE("residual_layer_norm: errors say what came", "[kernels][layer_norm]") {
  const Tensor x = Tensor::zeros({2, 3}, DType::kF32), w = Tensor::zeros({3}, DType::kF32);
  CHECK(error_of([&] { residual_layer_norm(Tensor{}, x, w); }) ==
        "residual_layer_norm: x is undefined");
  CHECK(error_of([&] { residual_layer_norm(x, Tensor{}, w); }) ==
        "residual_layer_norm: f is undefined");
  CHECK(error_of([&] { residual_layer_norm(x, w, w); }) ==
        "residual_layer_norm: f must have shape (2, 3), got (3,) (the shape of x)");
  CHECK(error_of([&] {
          residual_layer_norm(x, Tensor::zeros({2, 3}, DType::kBF16), w);
        }) == "residual_layer_norm: f is bfloat16, x is float32; cast one of them");
  CHECK(error_of([&] { residual_layer_norm(x, x, Tensor{}); }) ==
        "residual_layer_norm: weight is undefined");
}

#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/batch_norm/batch_norm.h>
#include <accrue/kernels/cast/cast.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
using Values = std::vector<double>;

struct Channels {
  std::size_t samples, channels, length;
  explicit Channels(const Shape& s)
      : samples(static_cast<std::size_t>(s[0])),
        channels(static_cast<std::size_t>(s[1])),
        length(s.numel() > 0 ? static_cast<std::size_t>(s.numel()) / samples / channels : 0) {}
  template <class F>
  void each(std::size_t c, F&& f) const {
    for (std::size_t n = 0; n < samples; ++n)
      for (std::size_t i = 0; i < length; ++i) f((n * channels + c) * length + i);
  }
  double count() const { return static_cast<double>(samples * length); }
};

struct Moments {
  double mean = 0, squares = 0;
};
Moments moments_of(const Values& x, const Channels& l, std::size_t c) {
  Moments m;
  l.each(c, [&](std::size_t i) { m.mean += x[i] / l.count(); });
  l.each(c, [&](std::size_t i) { m.squares += (x[i] - m.mean) * (x[i] - m.mean); });
  return m;
}
Values reference(const Values& x, const Values& weight, const Values& bias, const Shape& shape) {
  const Channels l(shape);
  Values y(x.size());
  for (std::size_t c = 0; c < l.channels; ++c) {
    const Moments m = moments_of(x, l, c);
    l.each(c, [&](std::size_t i) {
      y[i] = (x[i] - m.mean) / std::sqrt(m.squares / l.count() + 0.1) * weight[c] + bias[c];
    });
  }
  return y;
}
Values some(std::int64_t n, double step, double mean = 0) {
  Values x;
  for (std::int64_t i = 0; i < n; ++i) x.push_back(mean + std::sin(static_cast<double>(i) * step));
  return x;
}
Tensor f32(const Values& x, const Shape& shape) {
  return Tensor::from(std::vector<float>(x.begin(), x.end()), shape);
}
}  // namespace

TEST_CASE("batch_norm: a batch with its own moments", "[kernels][batch_norm]") {
  const Shape shape = GENERATE(Shape{5, 3}, Shape{2, 3, 4}, Shape{3, 2, 3, 5}, Shape{2, 2, 8, 4},
                               Shape{4, 1, 1, 2, 2}, Shape{0, 3, 2}, Shape{2, 3, 0});
  const Shape channels{shape[1]};
  check_op(
      {.name = "batch_norm",
       .inputs = {{.name = "x", .shape = shape, .low = -2, .high = 3},
                  {.name = "weight", .shape = channels, .low = 0.5, .high = 2},
                  {.name = "bias", .shape = channels}},
       .run =
           [](const std::vector<Tensor>& in) {
             BatchMoments m;
             add_batch_moments(in[0], m);
             return batch_norm(in[0], in[1], in[2], m, {.eps = 0.1});
           },
       .reference =
           [=](const std::vector<Values>& in) { return reference(in[0], in[1], in[2], shape); }});
}

TEST_CASE("batch_norm: constant moments, as in evaluation", "[kernels][batch_norm]") {
  const Shape shape = GENERATE(Shape{4, 3}, Shape{2, 2, 3, 4});
  const Shape channels{shape[1]};
  const Values m = some(2 * shape[1], 0.9, 1.5);
  check_op({.name = "batch_norm",
            .inputs = {{.name = "x", .shape = shape},
                       {.name = "weight", .shape = channels, .low = 0.5, .high = 2},
                       {.name = "bias", .shape = channels}},
            .run =
                [=](const std::vector<Tensor>& in) {
                  const Tensor t = Tensor::from(m, {2, shape[1]}, in[0].device());
                  return batch_norm(in[0], in[1], in[2], {t, 2.0},
                                    {.eps = 0.1, .gradient = BatchNormGradient::kConstant});
                },
            .reference =
                [=](const std::vector<Values>& in) {
                  const Channels l(shape);
                  Values y(in[0].size());
                  for (std::size_t c = 0; c < l.channels; ++c)
                    l.each(c, [&](std::size_t i) {
                      y[i] = (in[0][i] - m[c]) / std::sqrt(m[l.channels + c] / 2 + 0.1) * in[1][c] +
                             in[2][c];
                    });
                  return y;
                }});
}

TEST_CASE("batch_norm: the moments of pieces are those of the whole, over several chunks",
          "[kernels][batch_norm]") {
  const DType dtype = GENERATE(DType::kF32, DType::kF64);
  const double mean = GENERATE(0.0, 1000.0);
  const Shape shape{5, 2, 2500};
  Values x = some(shape.numel(), 0.37, mean);
  if (dtype == DType::kF32)
    for (double& v : x) v = static_cast<double>(static_cast<float>(v));
  const auto make = [&](std::int64_t first, std::int64_t count) {
    const Values part(x.begin() + first * 5000, x.begin() + (first + count) * 5000);
    const Shape s{count, 2, 2500};
    return dtype == DType::kF64 ? Tensor::from(part, s) : f32(part, s);
  };
  const Channels l(shape);
  for (const auto& sizes : {std::vector<std::int64_t>{5}, {1, 4}, {2, 0, 2, 1}}) {
    BatchMoments m;
    std::int64_t at = 0;
    for (const std::int64_t size : sizes) {
      add_batch_moments(make(at, size), m);
      at += size;
    }
    CHECK(m.count == 12500);
    const auto got = m.values.to_vector<double>();
    for (std::size_t c = 0; c < 2; ++c) {
      const Moments want = moments_of(x, l, c);
      const double tolerance = dtype == DType::kF64 ? 1e-12 : 2e-7;
      CHECK(std::abs(got[c] - want.mean) <= tolerance * std::max(1.0, std::abs(mean)));
      CHECK(got[2 + c] == Approx(want.squares).epsilon(dtype == DType::kF64 ? 1e-10 : 1e-6));
    }
  }
}

TEST_CASE("batch_norm: a window that begins anywhere has the same bits", "[kernels][batch_norm]") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16, DType::kF64);
  const Shape shape = GENERATE(Shape{3, 2, 8}, Shape{3, 2, 5}, Shape{2, 1, 2056});
  const auto shifted = [&](double step) {
    return cast(f32(some(shape.numel() + 1, step), {shape.numel() + 1}), dtype).window(1, shape);
  };
  const Tensor x = shifted(0.37), dy = shifted(0.53);
  BatchMoments m, same;
  add_batch_moments(x, m);
  add_batch_moments(x.clone(), same);
  CHECK(m.values.to_vector<double>() == same.values.to_vector<double>());
  const auto sums = [&](const Tensor& g, const Tensor& of) {
    const Tensor out = Tensor::empty({2, shape[1]}, DType::kF64);
    const Tensor workspace =
        Tensor::empty({kernels::batch_norm_chunks(shape), shape[1], 2}, DType::kF64);
    kernels::batch_norm_sums(out.stream(), {.dy = g,
                                            .x = of,
                                            .moments = m.values,
                                            .sums = out.view(),
                                            .workspace = workspace.view(),
                                            .count = m.count});
    return out.to_vector<double>();
  };
  CHECK(sums(dy, x) == sums(dy.clone(), x.clone()));
  CHECK(sums(dy.clone(), x) == sums(dy, x.clone()));
}

TEST_CASE("B68: the batch mean of micro-batches 0 and 4, 4, 4 is 3", "[kernels][batch_norm]") {
  BatchMoments m;
  add_batch_moments(f32({0}, {1, 1}), m);
  CHECK(m.values.to_vector<double>() == Values{0, 0});
  add_batch_moments(f32({4, 4, 4}, {3, 1}), m);
  CHECK(m.count == 4);
  CHECK(m.values.to_vector<double>() == Values{3, 12});
}

TEST_CASE("batch_norm: running statistics, unbiased", "[kernels][batch_norm]") {
  const Tensor moments = Tensor::from(Values{3, 12}, {2, 1});
  const Tensor running = Tensor::from(Values{0, 1}, {2, 1});
  kernels::batch_norm_running(
      running.stream(),
      {.moments = moments, .running = running.view(), .count = 4, .momentum = 0.1});
  const auto r = running.to_vector<double>();
  CHECK(r[0] == Approx(0.3));
  CHECK(r[1] == Approx(0.9 + 0.1 * 4));
}

TEST_CASE("batch_norm: what is refused", "[kernels][batch_norm]") {
  const Tensor x = f32(some(12, 0.3), {2, 3, 2}), w = f32({1, 1, 1}, {3});
  BatchMoments m;
  add_batch_moments(x, m);
  CHECK(error_of([&] { batch_norm(x, w, w, {}); }) == "batch_norm: moments is undefined");
  CHECK(error_of([&] {
          batch_norm(x, w, w, {m.values, 0});
        }) == "batch_norm: the moments have no elements");
  CHECK(error_of([&] {
          batch_norm(f32({1, 2, 3}, {3}), w, w, m);
        }) == "batch_norm: x must have 2 to 5 dimensions (batch, channels, ...), got (3,)");
  CHECK(error_of([&] {
          batch_norm(x, f32({1, 1}, {2}), w, m);
        }) == "batch_norm: weight must have shape (3,), got (2,) (the channels of x)");
  CHECK(error_of([&] { batch_norm(x, w, w, m, {.gradient = BatchNormGradient::kGiven}); }) ==
        "batch_norm: sums is undefined");
}

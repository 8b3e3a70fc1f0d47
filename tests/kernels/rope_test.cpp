#include <cmath>
#include <accrue/kernels/rope/rope.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
// Small whole numbers behind one that makes the block begin between two vectors.
Tensor shifted(const Shape& shape) {
  std::vector<float> v;
  for (std::int64_t i = 0; i <= shape.numel(); ++i)
    v.push_back(static_cast<float>(i * 7 % 23 - 11));
  return Tensor::from(v, {shape.numel() + 1}).window(1, shape);
}
}  // namespace

TEST_CASE("rope: both pairings, ragged and tiny sizes", "[kernels][rope]") {
  const Shape shape =
      GENERATE(Shape{1, 1, 1, 2}, Shape{2, 3, 2, 6}, Shape{1, 5, 3, 34}, Shape{2, 2, 1, 64},
               Shape{1, 2, 9, 16}, Shape{0, 3, 2, 4}, Shape{2, 3, 2, 0});
  const bool interleaved = GENERATE(false, true);
  const std::int64_t first = GENERATE(0, 1000);
  check_op({.name = "rope",
            .inputs = {{.name = "x", .shape = shape}},
            .run =
                [=](const std::vector<Tensor>& in) {
                  return rope(in[0],
                              {.base = 500, .first_position = first, .interleaved = interleaved});
                },
            .reference =
                [=](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y = in[0];
                  const auto dim = static_cast<std::size_t>(shape[3]);
                  const auto heads = static_cast<std::size_t>(shape[2]);
                  const auto times = static_cast<std::size_t>(shape[1]);
                  for (std::size_t head = 0; dim > 0 && head < y.size() / dim; ++head)
                    for (std::size_t i = 0; i < dim / 2; ++i) {
                      const double position =
                          static_cast<double>(first) + static_cast<double>(head / heads % times);
                      const double angle =
                          position *
                          std::pow(500.0, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
                      const std::size_t a = head * dim + (interleaved ? 2 * i : i);
                      const std::size_t b = interleaved ? a + 1 : a + dim / 2;
                      y[a] = in[0][a] * std::cos(angle) - in[0][b] * std::sin(angle);
                      y[b] = in[0][b] * std::cos(angle) + in[0][a] * std::sin(angle);
                    }
                  return y;
                }});
}

TEST_CASE("rope: only the distance of two positions enters their product", "[kernels][rope]") {
  const bool interleaved = GENERATE(false, true);
  std::vector<double> q, k;
  for (int i = 0; i < 16; ++i) {
    q.push_back(std::sin(i + 1.0));
    k.push_back(std::cos(2.0 * i));
  }
  const auto product = [&](std::int64_t p, std::int64_t s) {
    const auto a =
        rope(Tensor::from(q, {1, 1, 1, 16}), {.first_position = p, .interleaved = interleaved})
            .to_vector<double>();
    const auto b =
        rope(Tensor::from(k, {1, 1, 1, 16}), {.first_position = s, .interleaved = interleaved})
            .to_vector<double>();
    double sum = 0;
    for (std::size_t i = 0; i < 16; ++i) sum += a[i] * b[i];
    return sum;
  };
  CHECK(std::abs(product(7, 3) - product(1004, 1000)) < 1e-12);
}

TEST_CASE("rope: float32 far from the beginning, and heads wider than one CUDA launch takes",
          "[kernels][rope]") {
  const bool interleaved = GENERATE(false, true);
  const std::int64_t first = GENERATE(0, 1000003), dim = GENERATE(520, 600);
  const std::int64_t times = 3;
  const std::vector<float> ones(static_cast<std::size_t>(times * dim), 1.0f);
  const auto y = rope(Tensor::from(ones, {1, times, 1, dim}),
                      {.first_position = first, .interleaved = interleaved})
                     .to_vector<float>();
  double worst = 0;
  for (std::int64_t t = 0; t < times; ++t)
    for (std::int64_t i = 0; i < dim / 2; ++i) {
      const double angle =
          static_cast<double>(first + t) *
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      const auto a = static_cast<std::size_t>(t * dim + (interleaved ? 2 * i : i));
      const std::size_t b = interleaved ? a + 1 : a + static_cast<std::size_t>(dim / 2);
      worst = std::max({worst,
                        std::abs(static_cast<double>(y[a]) - (std::cos(angle) - std::sin(angle))),
                        std::abs(static_cast<double>(y[b]) - (std::cos(angle) + std::sin(angle)))});
    }
  CHECK(worst < 4e-7);
}

TEST_CASE("rope: a window may begin anywhere", "[kernels][rope]") {
  const bool interleaved = GENERATE(false, true);
  const Tensor x = shifted({2, 3, 5, 16});
  CHECK(rope(x, {.interleaved = interleaved}).to_vector<float>() ==
        rope(x.clone(), {.interleaved = interleaved}).to_vector<float>());
}

TEST_CASE("rope: tables are shared and stay valid", "[kernels][rope]") {
  const auto table = kernels::rope_table<float>(8, 5, 10, 10000, false);
  CHECK(table->first == 0);
  CHECK(table->length == 256);
  CHECK(kernels::rope_table<float>(8, 200, 56, 10000, false) == table);
  CHECK(kernels::rope_table<float>(8, 200, 57, 10000, false) != table);
  CHECK(kernels::rope_table<float>(8, 5, 10, 10000, true) != table);
  for (int i = 0; i < 20; ++i) kernels::rope_table<float>(8, 0, 1, 100.0 + i, false);
  CHECK(std::abs(table->cos(255)[0] - static_cast<float>(std::cos(255.0))) < 1e-7f);
  CHECK(std::abs(table->sin(255)[3] - static_cast<float>(std::sin(0.255))) < 1e-7f);
}

TEST_CASE("rope: errors say what came", "[kernels][rope]") {
  CHECK(error_of([] { rope(Tensor{}); }) == "rope: x is undefined");
  CHECK(error_of([] {
          rope(Tensor::zeros({2, 3}, DType::kF32));
        }) == "rope: x must have 4 dimensions (batch, time, heads, head_dim), got (2, 3)");
  const auto with = [](std::int64_t dim, const RopeOptions& o) {
    return error_of([=] { rope(Tensor::zeros({1, 1, 1, dim}, DType::kF32), o); });
  };
  CHECK(with(7, {}) == "rope: head_dim must be even, got 7");
  CHECK(with(8, {.base = 0}) == "rope: base must be positive and finite, got 0");
  CHECK(with(8, {.first_position = -1}) == "rope: first_position must not be negative, got -1");
}

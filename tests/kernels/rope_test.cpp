#include <cmath>
#include <accrue/kernels/rope/rope.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("rope: both pairings, ragged and tiny sizes", "[kernels][rope]") {
  const Shape shape = GENERATE(Shape{1, 1, 1, 2}, Shape{2, 3, 2, 6}, Shape{1, 5, 3, 34},
                               Shape{2, 2, 1, 64}, Shape{0, 3, 2, 4}, Shape{2, 3, 2, 0});
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

#include <accrue/kernels/matmul/matmul.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
OpCase matmul_case(std::vector<std::int64_t> batch, std::int64_t m, std::int64_t n, std::int64_t k,
                   MatmulOptions o) {
  std::int64_t count = 1;
  for (const std::int64_t b : batch) count *= b;
  const auto shape = [&](std::int64_t rows, std::int64_t columns, bool transpose) {
    std::vector<std::int64_t> dims = batch;
    dims.push_back(transpose ? columns : rows);
    dims.push_back(transpose ? rows : columns);
    return Shape(dims.data(), static_cast<int>(dims.size()));
  };
  return {.name = "matmul",
          .inputs = {{.name = "a", .shape = shape(m, k, o.transpose_a)},
                     {.name = "b", .shape = shape(k, n, o.transpose_b)}},
          .run = [=](const std::vector<Tensor>& t) { return matmul(t[0], t[1], o); },
          .reference =
              [=](const std::vector<std::vector<double>>& t) {
                std::vector<double> y;
                for (std::int64_t p = 0; p < count; ++p)
                  for (std::int64_t i = 0; i < m; ++i)
                    for (std::int64_t j = 0; j < n; ++j) {
                      double sum = 0;
                      for (std::int64_t l = 0; l < k; ++l)
                        sum += t[0][static_cast<std::size_t>(
                                   p * m * k + (o.transpose_a ? l * m + i : i * k + l))] *
                               t[1][static_cast<std::size_t>(
                                   p * k * n + (o.transpose_b ? j * k + l : l * n + j))];
                      y.push_back(o.alpha * sum);
                    }
                return y;
              }};
}
}  // namespace

TEST_CASE("matmul: transposes, batches, ragged sizes", "[kernels][matmul]") {
  const bool ta = GENERATE(false, true), tb = GENERATE(false, true);
  check_op(matmul_case({}, 1, 1, 1, {ta, tb, 1.0}));
  check_op(matmul_case({}, 7, 19, 5, {ta, tb, 1.0}));
  check_op(matmul_case({3}, 5, 5, 5, {ta, tb, 0.25}));
  check_op(matmul_case({2, 2}, 13, 3, 9, {ta, tb, -1.5}));
}

TEST_CASE("matmul: empty sizes", "[kernels][matmul]") {
  check_op(matmul_case({}, 2, 3, 0, {}));  // no products: 0
  check_op(matmul_case({}, 0, 3, 2, {}));
  check_op(matmul_case({}, 2, 0, 3, {.transpose_b = true}));
  check_op(matmul_case({0}, 2, 3, 4, {}));
}

TEST_CASE("matmul: errors say what came", "[kernels][matmul]") {
  const auto f = [](const Shape& s) { return Tensor::zeros(s, DType::kF32); };
  CHECK(error_of([&] { matmul({}, f({2, 2})); }) == "matmul: a is undefined");
  CHECK(error_of([&] { matmul(f({2, 2}), {}); }) == "matmul: b is undefined");
  CHECK(error_of([&] {
          matmul(f({2, 2}), Tensor::zeros({2, 2}, DType::kF64));
        }) == "matmul: b is float64, a is float32; cast one of them");
  CHECK(error_of([&] {
          matmul(f({2}), f({2, 2}));
        }) ==
        "matmul: a and b must be (..., rows, columns), got (2,) and (2, 2); reshape a vector to "
        "one row or one column");
  CHECK(error_of([&] {
          matmul(f({3, 2, 2}), f({2, 2}));
        }) ==
        "matmul: a and b must have equal leading dimensions, got (3, 2, 2) and (2, 2); linear "
        "multiplies many rows by one matrix");
  CHECK(error_of([&] {
          matmul(f({2, 3}), f({2, 3}));
        }) == "matmul: the inner sizes must be equal, got 3 in a (2, 3) and 2 in b (2, 3)");
  CHECK(error_of([&] {
          matmul(f({2, 3}), f({2, 4}), {.transpose_b = true});
        }) ==
        "matmul: the inner sizes must be equal, got 3 in a (2, 3) and 4 in b (2, 4) transposed");
}

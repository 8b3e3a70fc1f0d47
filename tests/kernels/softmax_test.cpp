#include <atomic>
#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/rows.h>
#include <accrue/kernels/softmax/softmax.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("softmax: ragged and tiny sizes", "[kernels][softmax]") {
  const Shape shape =
      GENERATE(Shape{1}, Shape{3, 7}, Shape{2, 3, 33}, Shape{2, 129}, Shape{0, 4}, Shape{4, 0});
  check_op({.name = "softmax",
            .inputs = {{.name = "x", .shape = shape, .low = -6, .high = 6}},
            .run = [](const std::vector<Tensor>& in) { return softmax(in[0]); },
            .reference =
                [=](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y = in[0];
                  const auto cols = static_cast<std::size_t>(shape.cols());
                  for (std::size_t begin = 0; begin < y.size(); begin += cols) {
                    double sum = 0;
                    for (std::size_t j = 0; j < cols; ++j) sum += std::exp(y[begin + j]);
                    for (std::size_t j = 0; j < cols; ++j)
                      y[begin + j] = std::exp(y[begin + j]) / sum;
                  }
                  return y;
                }});
}

TEST_CASE("softmax: masked rows give 0, NaN stays", "[kernels][softmax]") {
  const float inf = INFINITY;
  const std::vector<float> x{-inf, -inf,  -inf,  // masked
                             -inf, 3,     -inf,  // one left
                             1e4f, -1e4f, 1e4f,  // far apart
                             NAN,  -inf,  -inf,  // NaN among masked
                             0,    NAN,   5};
  const auto y = softmax(Tensor::from(x, {5, 3})).to_vector<float>();
  CHECK(std::vector<float>(y.begin(), y.begin() + 9) ==
        std::vector<float>{0, 0, 0, 0, 1, 0, 0.5f, 0, 0.5f});
  CHECK(std::isnan(y[9]));
  CHECK(std::isnan(y[12]));
  CHECK(std::isnan(y[13]));
  CHECK(std::isnan(y[14]));

  std::vector<bfloat16> half;
  for (const float v : x) half.push_back(bfloat16(v));
  const auto z = softmax(Tensor::from(half, {5, 3})).to_vector<bfloat16>();
  for (std::size_t i = 0; i < 3; ++i) CHECK(static_cast<float>(z[i]) == 0.0f);
  CHECK(std::isnan(static_cast<float>(z[9])));
}

TEST_CASE("softmax: the gradient of a masked row is 0", "[kernels][softmax]") {
  Tensor x = Tensor::from(std::vector<float>(20, -INFINITY), {2, 10});
  Tape tape;
  tape.watch(x);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = softmax(x);
  }
  tape.backward_from(y, Tensor::from(std::vector<float>(20, 3.0f), {2, 10}));
  CHECK(tape.gradient(x).to_vector<float>() == std::vector<float>(20, 0.0f));
}

// 65537 x 32768 passes 2^31 elements: the cut that every op over rows uses, without the memory.
TEST_CASE("B50: rows beyond 2^31 elements are cut and addressed in 64 bits",
          "[kernels][softmax][cpu]") {
  using namespace accrue::kernels;
  constexpr std::int64_t rows = 65537, cols = 32768;
  STATIC_REQUIRE(row_offset(rows - 1, cols) == 2147483648);
  STATIC_REQUIRE(row_offset(std::int64_t{1} << 33, 3) == 25769803776);
  STATIC_REQUIRE(row_grain(cols) == 1);
  STATIC_REQUIRE(row_grain(768) == 21);
  STATIC_REQUIRE(row_grain(0) == 16384);
  STATIC_REQUIRE(partial_count(std::int64_t{1} << 33, 1) == 64);
  STATIC_REQUIRE(partial_count(0, 768) == 0);
  std::atomic<std::int64_t> covered{0}, last{0};
  parallel_for(rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    covered += row_offset(end, cols) - row_offset(begin, cols);
    if (end == rows) last = row_offset(end, cols);
  });
  CHECK(covered == 2147516416);
  CHECK(last == 2147516416);
  // One long row of chunks, as elementwise loops cut it.
  constexpr std::int64_t numel = (std::int64_t{1} << 31) + 8;
  std::atomic<std::int64_t> elements{0}, tail{0};
  parallel_for(numel, std::int64_t{1} << 20, [&](std::int64_t begin, std::int64_t end) {
    elements += end - begin;
    if (end == numel) tail = end - begin;
  });
  CHECK(elements == numel);
  CHECK(tail == 8);
}

TEST_CASE("B50: poisoned output is written to the last row", "[kernels][softmax]") {
  const std::int64_t rows = 1025, cols = 33;
  const Tensor y = softmax(
      Tensor::from(std::vector<float>(static_cast<std::size_t>(rows * cols)), {rows, cols}));
  const auto values = y.to_vector<float>();
  double sum = 0;
  for (std::size_t i = values.size() - cols; i < values.size(); ++i)
    sum += static_cast<double>(values[i]);
  CHECK(std::abs(sum - 1) < 1e-6);
}

TEST_CASE("softmax: errors say what came", "[kernels][softmax]") {
  CHECK(error_of([] { softmax(Tensor{}); }) == "softmax: x is undefined");
  CHECK(error_of([] { softmax(Tensor::zeros({2}, DType::kI32)); }) ==
        "softmax: x must be of floating dtype, got int32");
}

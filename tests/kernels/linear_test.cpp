#include <cmath>
#include <accrue/core/parameter.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/linear/linear.h>
#include "tests/kernels/linear_reference.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
OpCase linear_case(const Shape& x, std::int64_t out, bool bias) {
  const std::int64_t in = x[-1], rows = x.rows();
  OpCase c{.name = "linear",
           .inputs = {{.name = "x", .shape = x}, {.name = "weight", .shape = {out, in}}},
           .run =
               [=](const std::vector<Tensor>& t) {
                 return bias ? linear(t[0], t[1], t[2]) : linear(t[0], t[1]);
               },
           .reference =
               [=](const std::vector<std::vector<double>>& t) {
                 return plain_linear(t, rows, in, out);
               }};
  if (bias) c.inputs.push_back({.name = "bias", .shape = {out}});
  return c;
}
}  // namespace

TEST_CASE("linear: ragged and tiny sizes, with and without bias", "[kernels][linear]") {
  const bool bias = GENERATE(false, true);
  check_op(linear_case({1}, 1, bias));
  check_op(linear_case({3, 5}, 7, bias));
  check_op(linear_case({2, 3, 17}, 33, bias));
  check_op(linear_case({13, 9}, 65, bias));
}

TEST_CASE("linear: x and weight are one tensor", "[kernels][linear]") {
  check_op(linear_case({5, 5}, 5, false));
}

TEST_CASE("linear: empty sizes", "[kernels][linear]") {
  const bool bias = GENERATE(false, true);
  check_op(linear_case({0, 5}, 3, bias));  // no rows: dweight and dbias become 0
  check_op(linear_case({2, 0}, 3, bias));  // y is the bias
  check_op(linear_case({2, 5}, 0, bias));
}

TEST_CASE("linear: no rows leave an accumulated weight gradient alone", "[kernels][linear]") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  std::vector<float> held{1.0f, -2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
  const Tensor grad = Tensor::from(held, {2, 3});
  const Tensor x = Tensor::empty({0, 3}, dtype), w = Tensor::zeros({2, 3}, dtype),
               dy = Tensor::empty({0, 2}, dtype);
  kernels::linear_backward(
      x.stream(),
      {.dy = dy, .x = x, .weight = w, .dweight = {.dst = grad.view(), .alpha = 1, .beta = 1}});
  CHECK(grad.to_vector<float>() == held);
  kernels::linear_backward(
      x.stream(), {.dy = dy, .x = x, .weight = w, .dweight = {.dst = grad.view(), .alpha = 1}});
  CHECK(grad.to_vector<float>() == std::vector<float>(6, 0.0f));
}

TEST_CASE("linear: bfloat16 weight gradients reach the float32 block unrounded",
          "[kernels][linear]") {
  // 1 + 2^-9 + ... has more bits than bfloat16 holds; 300 rows cross the blocks of packing.
  const std::int64_t rows = 300;
  ParameterSet set;
  Parameter* w = set.add("w", {1, 1}, true, {});
  Parameter* b = set.add("b", {1}, false, {});
  set.allocate(default_device(), DType::kBF16);
  w->value.fill_zero();
  b->value.fill_zero();
  const std::vector<bfloat16> ones(static_cast<std::size_t>(rows), bfloat16(1.0f));
  for (int micro = 0; micro < 2; ++micro) {
    Tape tape;
    Tensor y;
    {
      const Tape::Scope on(tape);
      y = linear(Tensor::from(ones, {rows, 1}), w->value, b->value);
    }
    std::vector<bfloat16> dy(static_cast<std::size_t>(rows), bfloat16(1.0f));
    dy[0] = bfloat16(0x1p-7f);
    tape.backward_from(y, Tensor::from(dy, {rows, 1}));
  }
  const double want = 2 * (299 + 0x1p-7);
  CHECK(set.grads().window(w->offset, {1}).item() == want);
  CHECK(set.grads().window(b->offset, {1}).item() == want);
}

TEST_CASE("linear: x is kept only for a weight that is trained", "[kernels][linear]") {
  Tape tape;
  Tensor x = Tensor::zeros({4, 4}, DType::kF32);
  const Tensor w = Tensor::zeros({4, 4}, DType::kF32);
  tape.watch(x);
  const long before = x.use_count();
  const Tape::Scope on(tape);
  const Tensor y = linear(x, w);
  CHECK(tape.size() == 1);
  CHECK(x.use_count() == before);
}

TEST_CASE("linear: infinities and NaN stay in their rows", "[kernels][linear]") {
  const Tensor x = Tensor::from(std::vector<float>{1, 2, INFINITY, 1, NAN, 0, 3, 4}, {4, 2});
  const Tensor w = Tensor::from(std::vector<float>{1, 1, 2, -1, 0.5f, 0}, {3, 2});
  const auto y = linear(x, w).to_vector<float>();
  CHECK(y[0] == 3);
  CHECK(y[1] == 0);
  CHECK(y[3] == INFINITY);
  CHECK(std::isnan(y[6]));
  CHECK(y[9] == 7);
  CHECK(y[11] == 1.5f);
}

TEST_CASE("linear: errors say what came", "[kernels][linear]") {
  const Tensor x = Tensor::zeros({2, 3}, DType::kF32), w = Tensor::zeros({4, 3}, DType::kF32);
  CHECK(error_of([&] { linear({}, w); }) == "linear: x is undefined");
  CHECK(error_of([&] { linear(x, {}); }) == "linear: weight is undefined");
  CHECK(error_of([&] {
          linear(Tensor::zeros({2, 3}, DType::kI32), w);
        }) == "linear: x must be of floating dtype, got int32");
  CHECK(error_of([&] { linear(x, Tensor::zeros({3}, DType::kF32)); }) ==
        "linear: weight must have 2 dimensions (out, in), got (3,)");
  CHECK(error_of([&] {
          linear(x, Tensor::zeros({4, 3}, DType::kBF16));
        }) == "linear: weight is bfloat16, x is float32; cast one of them");
  CHECK(error_of([&] {
          linear(x, Tensor::zeros({3, 4}, DType::kF32));
        }) ==
        "linear: x must have shape (..., in) with in = 4 as in weight (3, 4), got (2, 3); weight "
        "is (out, in)");
  CHECK(error_of([&] { linear(x, w, Tensor::zeros({3}, DType::kF32)); }) ==
        "linear: bias must have shape (4,), got (3,) (one number per row of weight)");
  CHECK(error_of([&] { linear(x, w, Tensor::zeros({4}, DType::kF64)); }) ==
        "linear: bias is float64, x is float32; cast one of them");
}

#include <accrue/core/tape.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/dropout/dropout.h>
#include <accrue/kernels/residual_add/residual_add.h>
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
RandomState random_state(std::int64_t rows, Device device = default_device()) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < rows; ++i) ids.push_back(1000 + 7 * i);
  return {Tensor::from(std::vector<std::int64_t>{21, 3}, {2}, device),
          Tensor::from(ids, {rows}, device)};
}
bool keeps(std::int64_t row, std::int64_t e, double p) {
  const std::uint64_t k = random_key(21, 3);
  const auto w = philox4x32(
      {static_cast<std::uint32_t>(e / 8), 6, static_cast<std::uint32_t>(1000 + 7 * row), 0},
      {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(k >> 32)});
  return (w[static_cast<std::size_t>(e % 8 / 2)] >> (e % 2 ? 16 : 0) & 0xffffu) >=
         static_cast<std::uint32_t>(p * 65536 + 0.5);
}
}  // namespace

TEST_CASE("residual_add: x + dropout(f), ragged and tiny sizes", "[kernels][residual_add]") {
  const Shape shape = GENERATE(Shape{1}, Shape{3, 7}, Shape{2, 3, 57}, Shape{2, 0});
  const double p = GENERATE(0.0, 0.4);
  check_op({.name = "residual_add",
            .inputs = {{.name = "x", .shape = shape}, {.name = "f", .shape = shape}},
            .run =
                [=](const std::vector<Tensor>& in) {
                  return residual_add(in[0], in[1], p, random_state(shape[0], in[0].device()), 6);
                },
            .reference =
                [=](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y = in[0];
                  const std::int64_t length = shape.numel() / shape[0];
                  for (std::int64_t i = 0; i < shape.numel(); ++i)
                    if (p == 0 || keeps(i / length, i % length, p))
                      y[static_cast<std::size_t>(i)] += in[1][static_cast<std::size_t>(i)] * 65536 /
                                                        (65536 - std::round(65536 * p));
                  return y;
                }});
}

TEST_CASE("residual_add: the same as dropout and add apart", "[kernels][residual_add]") {
  std::vector<float> v(4 * 5000);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i % 101) - 50;
  const Tensor x = Tensor::from(v, {4, 5000}),
               f = Tensor::from(std::vector<float>(v.rbegin(), v.rend()), {4, 5000});
  CHECK(residual_add(x, f, 0.5, random_state(4), 6).to_vector<float>() ==
        add(x, dropout(f, 0.5, random_state(4), 6)).to_vector<float>());
}

TEST_CASE("residual_add: windows may begin anywhere", "[kernels][residual_add]") {
  const Tensor x = shifted({3, 640}), f = x.clone();
  const auto want = residual_add(f, f, 0.5, random_state(3), 6).to_vector<float>();
  CHECK(residual_add(x, f, 0.5, random_state(3), 6).to_vector<float>() == want);
  CHECK(residual_add(f, x, 0.5, random_state(3), 6).to_vector<float>() == want);
}

TEST_CASE("residual_add: without dropout both gradients are dy itself", "[kernels][residual_add]") {
  Tensor x = Tensor::zeros({2, 5}, DType::kF32), f = Tensor::zeros({2, 5}, DType::kF32);
  Tape tape;
  tape.watch(x);
  tape.watch(f);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = residual_add(x, f);
  }
  const Tensor seed = Tensor::zeros({2, 5}, DType::kF32);
  tape.backward_from(y, seed);
  CHECK(tape.gradient(x).data<float>() == seed.data<float>());
  CHECK(tape.gradient(f).data<float>() == seed.data<float>());
}

TEST_CASE("residual_add: errors say what came", "[kernels][residual_add]") {
  const Tensor x = Tensor::zeros({2, 3}, DType::kF32);
  CHECK(error_of([&] { residual_add(x, Tensor{}); }) == "residual_add: f is undefined");
  CHECK(error_of([&] { residual_add(x, Tensor::zeros({3}, DType::kF32)); }) ==
        "residual_add: f must have shape (2, 3), got (3,) (the shape of x)");
  CHECK(error_of([&] { residual_add(x, x, 1.5); }) == "residual_add: p must be in [0, 1), got 1.5");
  CHECK(error_of([&] { residual_add(x, x, 0.5); }) ==
        "residual_add: p is 0.5, but random has no key or samples");
}

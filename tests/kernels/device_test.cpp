// Every op with several tensors names the one that lies on another device.
#include <accrue/kernels_all.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("a tensor on another device is named", "[kernels][error]") {
  const auto here = [](const Shape& s, DType t = DType::kF32) { return Tensor::zeros(s, t); };
  const auto there = [](const Shape& s, DType t = DType::kF32) {
    return Tensor::empty(s, t, Device::meta());
  };
  const auto text = [](const std::string& op, const std::string& b, const std::string& a) {
    return op + ": " + b + " is on meta, " + a + " on " + to_string(default_device()) +
           "; move one of them";
  };
  const Tensor x = here({2, 3}), w = here({4, 3}), v = here({3}), heads = here({1, 2, 2, 4});
  CHECK(error_of([&] { linear(x, there({4, 3})); }) == text("linear", "weight", "x"));
  CHECK(error_of([&] { linear(x, w, there({4})); }) == text("linear", "bias", "x"));
  CHECK(error_of([&] { matmul(x, there({3, 2})); }) == text("matmul", "b", "a"));
  CHECK(error_of([&] { swiglu(x, there({2, 3})); }) == text("swiglu", "up", "gate"));
  CHECK(error_of([&] { residual_add(x, there({2, 3})); }) == text("residual_add", "f", "x"));
  CHECK(error_of([&] { layer_norm(x, there({3})); }) == text("layer_norm", "weight", "x"));
  CHECK(error_of([&] { layer_norm(x, v, there({3})); }) == text("layer_norm", "bias", "x"));
  CHECK(error_of([&] { rms_norm(x, there({3})); }) == text("rms_norm", "weight", "x"));
  CHECK(error_of([&] {
          embedding(here({2}, DType::kI32), there({4, 3}));
        }) == text("embedding", "weight", "tokens"));
  CHECK(error_of([&] {
          attention(heads, there({1, 2, 2, 4}), heads);
        }) == text("attention", "k", "q"));
  CHECK(error_of([&] {
          attention(heads, heads, there({1, 2, 2, 4}));
        }) == text("attention", "v", "q"));
  CHECK(error_of([&] { mse(x, there({2, 3})); }) == text("mse", "target", "x"));
  CHECK(error_of([&] { cross_entropy(x, there({2}, DType::kI32)); }) ==
        text("cross_entropy", "targets", "logits"));
  CHECK(error_of([&] {
          cross_entropy(x, here({2}, DType::kI32), {.class_weights = there({3})});
        }) == text("cross_entropy", "class_weights", "logits"));
  CHECK(error_of([&] {
          dropout(x, 0.5, {there({2}, DType::kI64), here({2}, DType::kI64)}, 0);
        }) == text("dropout", "random.key", "x"));
  CHECK(error_of([&] {
          dropout(x, 0.5, {here({2}, DType::kI64), there({2}, DType::kI64)}, 0);
        }) == text("dropout", "random.samples", "x"));
}

// Layers that no model of this library uses yet, trained together on a small task.
#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include <accrue/kernels/relu/relu.h>
#include <accrue/nn/layers.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::nn;

TEST_CASE("Conv2d and MaxPool2d learn which way stripes run", "[nn][layers]") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const DeviceScope here(Device::cpu());  // the step is taken by hand
  ParameterSet set;
  const Conv2d conv(set, "conv", 1, 4, 3, {.padding = 1});
  const MaxPool2d pool{2};
  const Linear head(set, "head", 4 * 4 * 4, 2);
  set.allocate(Device::cpu(), dtype);
  initialize(set, 7);

  std::vector<float> pixels;
  std::vector<std::int32_t> labels;
  for (int image = 0; image < 16; ++image) {
    const int across = image % 2, period = 2 + image / 2 % 2, phase = image / 4;
    labels.push_back(across);
    for (int h = 0; h < 8; ++h)
      for (int w = 0; w < 8; ++w)
        pixels.push_back(((across ? w : h) + phase) % period == 0 ? 1.0f : -1.0f);
  }
  const Tensor images = Tensor::from(pixels, {16, 1, 8, 8});
  const Tensor x = cast(images, dtype);
  const Tensor targets = Tensor::from(labels, {16});
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    Tape tape;
    Tensor loss;
    {
      const Tape::Scope on(tape);
      const Tensor h = pool(relu(conv(x)));
      loss = cross_entropy(head(h.reshape({16, 64})), targets).sum;
    }
    last = loss.item() / 16;
    if (step == 0) first = last;
    tape.backward(loss, 1.0 / 16);
    const auto grads = set.grads().to_vector<float>();
    const auto master = set.master().view();
    for (std::size_t i = 0; i < grads.size(); ++i) master.data<float>()[i] -= 0.1f * grads[i];
    refresh_values(set);
    set.clear_touched();
  }
  CHECK(first > 0.4);
  CHECK(last < 0.1);
}

TEST_CASE("Conv2d: shapes and initial values", "[nn][layers]") {
  ParameterSet set;
  const Conv2d conv(set, "c", 6, 8, {3, 5}, {.stride = 2, .groups = 2}, false);
  set.allocate(default_device(), DType::kF32);
  initialize(set, 3);
  CHECK(conv.bias == nullptr);
  CHECK(conv.weight->shape == Shape{8, 3, 3, 5});
  double square = 0;
  for (const float w : conv.weight->value.to_vector<float>()) square += w * w;
  CHECK(std::sqrt(square / 360) == Approx(std::sqrt(2.0 / 45)).epsilon(0.15));
  CHECK(conv(Tensor::zeros({1, 6, 9, 9}, DType::kF32)).shape() == Shape{1, 8, 4, 3});
  CHECK(test::error_of([&] { Conv2d(set, "d", 5, 4, 3, {.groups = 2}); }) ==
        "Conv2d: in = 5 must be a multiple of groups = 2");
}

// Samples and batches that are larger than memory.
#include <accrue/kernels/gelu/gelu.h>
#include <accrue/kernels/mse/mse.h>
#include <accrue/nn/gpt.h>
#include <accrue/nn/init.h>
#include <accrue/optim/optim.h>
#include "tests/support/catch.h"
#include "tests/support/tiny_gpt.h"

using namespace accrue;
using namespace accrue::test;

namespace {
constexpr std::int64_t kTokens = 144, kLayers = 3;

class OneSequence {
 public:
  explicit OneSequence(Device device) : on_(device), gpt(set, config()), window_(prepared(device)) {
    std::vector<std::int32_t> x, y;
    for (int i = 0; i < kTokens; ++i) {
      x.push_back(static_cast<std::int32_t>(i * 7 % kVocabulary));
      y.push_back(i % 6 == 5 ? -100 : static_cast<std::int32_t>(i * 5 % kVocabulary));
    }
    x_ = Tensor::from(x, {1, kTokens});
    y_ = Tensor::from(y, {1, kTokens});
  }
  /// Returns the bytes that were in use at most beyond those before.
  std::int64_t run(const ActivationPolicy& policy) {
    Allocator& memory = Allocator::of(set.device());
    gpt.activations = policy;
    window_.reset();
    memory.reset_peak();
    const std::int64_t before = memory.stats().live;
    Tape tape;
    const Tape::Scope on(tape);
    window_.add(tape, gpt.loss(x_, y_));
    return memory.stats().peak - before;
  }
  std::vector<float> gradients() const {
    std::vector<float> all;
    for (const Parameter& p : set.all()) {
      const auto g = set.grads().window(p.offset, {p.size}).to_vector<float>();
      all.insert(all.end(), g.begin(), g.end());
    }
    return all;
  }

 private:
  static nn::GptConfig config() {
    nn::GptConfig c = tiny_config(nn::GptShape::kGpt2, 0.0);
    c.context = kTokens;
    c.layers = kLayers;
    return c;
  }
  ParameterSet& prepared(Device device) {
    set.allocate(device, DType::kF32);
    nn::initialize(set, 3);
    return set;
  }
  DeviceScope on_;

 public:
  ParameterSet set;
  nn::Gpt gpt;

 private:
  optim::Window window_;
  Tensor x_, y_;
};

struct NoBudget {
  ~NoBudget() { Allocator::of(default_device()).set_budget(0); }
};
}  // namespace

TEST_CASE("long sequence: it trains where only a part of it would fit", "[nn][offload]") {
  Allocator& memory = Allocator::of(default_device());
  const Device meta = Device::meta(default_device().target());
  const ActivationPolicy policy{.blocks = std::vector<Recompute>(kLayers, Recompute::kBlock),
                                .loss_rows = 8,
                                .mlp_rows = 8,
                                .offload = true};
  std::int64_t needed = 0, predicted = 0;
  {
    OneSequence there(meta);
    needed = there.run({});
    predicted = there.run(policy);
  }
  OneSequence sequence(default_device());
  CHECK(sequence.run({}) == needed);
  const auto expected = sequence.gradients();
  // Kernels of a GPU have workspaces that no policy makes smaller.
  CHECK(predicted < (default_device().is_cuda() ? needed : needed / 2));

  const NoBudget no_budget;
  memory.trim();
  memory.set_budget(memory.stats().live + predicted);
  CHECK_THROWS_AS(sequence.run({}), OutOfMemory);
  CHECK(sequence.run(policy) == predicted);
  const auto gradients = sequence.gradients();
  double scale = 0;
  for (const float g : expected) scale = std::max(scale, std::abs(double{g}));
  for (std::size_t i = 0; i < expected.size(); ++i)
    REQUIRE(std::abs(double{gradients[i]} - double{expected[i]}) <= 2e-6 * scale);
}

TEST_CASE("long batch: 512 samples take the memory of a micro-batch", "[nn][offload]") {
  const auto peak = [](std::int64_t batch, Device device) {
    const DeviceScope everywhere(device);
    ParameterSet set;
    const nn::Linear first(set, "first", 3, 8), second(set, "second", 8, 2);
    set.allocate(device, DType::kF32);
    nn::initialize(set, 1);
    optim::Window window(set);
    optim::AdamW adamw(set, optim::constant(1e-3));
    const Tensor x = Tensor::zeros({batch, 3}, DType::kF32),
                 y = Tensor::zeros({batch, 2}, DType::kF32);
    Allocator& memory = Allocator::of(device);
    memory.reset_peak();
    const std::int64_t before = memory.stats().live;
    constexpr std::int64_t kMicro = 32;
    for (std::int64_t at = 0; at < batch; at += kMicro) {
      Tape tape;
      const Tape::Scope on(tape);
      const Tensor h = gelu(first(x.window(at * 3, {kMicro, 3})));
      window.add(tape, mse(second(h), y.window(at * 2, {kMicro, 2})));
    }
    adamw.step(window);
    return memory.stats().peak - before;
  };
  const Device meta = Device::meta(default_device().target());
  const std::int64_t two = peak(64, default_device());
  CHECK(two > 0);
  CHECK(peak(512, default_device()) == two);
  CHECK(peak(512, meta) == two);
  CHECK(peak(std::int64_t{1} << 20, Device::meta()) == peak(64, Device::meta()));
}

// The question the project comes from: sentences of 250 tokens in a batch of 32 over a vocabulary
// of 40,000 words need 1.28 GB for the logits alone, and as much again for their gradient. The
// figures of docs/memory.md, measured on the meta device.
#include <accrue/core/tape.h>
#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include <accrue/nn/layers.h>
#include <accrue/nn/recompute.h>
#include <accrue/optim/window.h>
#include "tests/support/catch.h"

using namespace accrue;

namespace {
constexpr std::int64_t kWords = 40000, kTokens = 250, kSamples = 32, kChannels = 64;
constexpr std::int64_t kLogits = kSamples * kTokens * kWords * 4;
static_assert(kLogits == 1'280'000'000);

struct Head {
  ParameterSet set;
  nn::Linear linear{set, "head", kChannels, kWords, false};
  Head() { set.allocate(Device::meta(), DType::kF32); }

  // Peak bytes of a window beyond what is there before it, and beyond the hidden states and
  // targets.
  template <class LossOf>
  std::int64_t peak(std::int64_t micro, const LossOf& loss_of) {
    optim::Window window(set);
    Allocator& memory = Allocator::of(Device::meta());
    const auto activations = static_cast<std::size_t>(Category::kActivation);
    memory.reset_peak();
    const std::int64_t before = memory.stats().live_by_category[activations];
    std::int64_t inputs = 0;
    for (std::int64_t first = 0; first < kSamples; first += micro) {
      Tensor x = Tensor::zeros({micro, kTokens, kChannels}, DType::kF32, Device::meta());
      const Tensor targets = Tensor::zeros({micro, kTokens}, DType::kI32, Device::meta());
      inputs = memory.stats().live_by_category[activations] - before;
      Tape tape;
      const Tape::Scope on(tape);
      window.add(tape, loss_of(x, targets));
    }
    return memory.stats().peak_by_category[activations] - before - inputs;
  }
};
bool near(std::int64_t bytes, std::int64_t expected) {
  return bytes >= expected && bytes < expected + expected / 50;
}
}  // namespace

TEST_CASE("the worked example of the documents: 1.28 GB of logits", "[nn][memory]") {
  Head head;
  const auto separate = [&](const Tensor& x, const Tensor& targets) {
    return cross_entropy(head.linear(x), targets);
  };
  const auto in_place = [&](const Tensor& x, const Tensor& targets) {
    return cross_entropy(head.linear(x), targets, {.in_place = true});
  };
  const auto in_tiles = [&](const Tensor& x, const Tensor& targets) {
    return nn::tiled_loss(in_place, x, targets, 250);
  };
  CHECK(near(head.peak(kSamples, separate), 2 * kLogits));
  CHECK(near(head.peak(kSamples, in_place), kLogits));
  CHECK(near(head.peak(8, in_place), kLogits / 4));
  CHECK(near(head.peak(1, in_place), kLogits / 32));
  CHECK(near(head.peak(kSamples, in_tiles), kLogits / 32));
}

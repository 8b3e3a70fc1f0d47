#include <accrue/core/allocator.h>
#include <accrue/optim/optim.h>
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_gpt.h"

using namespace accrue;
using namespace accrue::test;

namespace {
struct Trained {
  std::int64_t peak = 0;  // above what was live before
  std::vector<float> weights;
};

// A model, one optimizer step of two micro-batches, and all of it released again.
Trained train(Device device, DType dtype) {
  Allocator& memory = Allocator::of(device);
  const std::int64_t before = memory.stats().live;
  memory.reset_peak();
  Trained out;
  {
    ParameterSet parameters;
    nn::GptConfig config = tiny_config();
    config.layers = 1;
    nn::Gpt model(parameters, config);
    parameters.allocate(device, dtype);
    nn::initialize(parameters, 5);
    optim::AdamW optimizer(parameters, optim::constant(1e-3));
    optim::Window window(parameters);
    const RaggedBatch batch(3);
    for (const std::int64_t first : {0, 2}) {
      const auto micro = batch.micro(first, first == 0 ? 2 : 1, 0, kContext, device);
      Tape tape;
      const Tape::Scope on(tape);
      window.add(tape, model.loss(micro.tokens, micro.targets, micro.random));
    }
    optimizer.step(window);
    if (!device.is_meta()) out.weights = parameters.master().to_vector<float>();
  }
  out.peak = memory.stats().peak - before;
  return out;
}
}  // namespace

// B57: a budget is a hard limit, and a refusal costs nothing but the step.
TEST_CASE("budget: exactly the predicted peak is enough, one byte less is out of memory",
          "[optim][memory][bugs]") {
  const Device device = default_device();
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const bool kept = GENERATE(false, true);  // blocks that are kept count against the budget
  const ReuseScope reuse(device, kept);
  Allocator& memory = Allocator::of(device);
  memory.trim();
  const std::int64_t predicted = train(Device::meta(device.target()), dtype).peak;
  const Trained free = train(device, dtype);
  CHECK(free.peak == predicted);
  memory.trim();
  const std::int64_t before = memory.stats().live, budget = before + predicted;
  const struct Unlimited {
    Allocator& memory;
    ~Unlimited() { memory.set_budget(0); }
  } afterwards{memory};

  memory.set_budget(budget);
  const Trained exact = train(device, dtype);
  CHECK(exact.peak == predicted);
  CHECK(exact.weights == free.weights);
  CHECK(memory.stats().live == before);

  memory.set_budget(budget - 1);
  bool thrown = false;
  try {
    train(device, dtype);
  } catch (const OutOfMemory& e) {
    thrown = true;
    CHECK(e.budget() == budget - 1);
    CHECK(e.in_use() + e.requested() == budget);
    CHECK(e.would_fit() == e.requested() - 1);
    CHECK_FALSE(e.live().empty());
  }
  CHECK(thrown);
  CHECK(memory.stats().live == before);

  memory.set_budget(budget);
  CHECK(train(device, dtype).weights == free.weights);
  CHECK(memory.stats().reserved <= budget);
}

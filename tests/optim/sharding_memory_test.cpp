// What a rank of several holds: the formulas, and the peak that meta predicts.
#include <memory>
#include <accrue/nn/gpt.h>
#include <accrue/nn/init.h>
#include <accrue/optim/optim.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/devices.h"
#include "tests/support/lone_rank.h"
#include "tests/support/tiny_gpt.h"

using namespace accrue;
using namespace accrue::test;
using optim::Numerics;

namespace {
std::size_t at(Category c) { return static_cast<std::size_t>(c); }

struct Held {
  std::int64_t parameters, gradients, optimizer, communication;
};

// Of a set of 10 million parameters that nobody uses, with AdamW. Twenty tensors, windows of 2^20.
Held held(DType dtype, MasterWeights master, Numerics numerics, ShardStage stage,
          ReducePolicy policy, int ranks) {
  const Device device = Device::meta();
  const auto before = Allocator::of(device).stats().live_by_category;
  LoneRank world(ranks - 1, ranks);
  ParameterSet set;
  for (int i = 0; i < 20; ++i)
    set.add(accrue::detail::concat("p", i), {500'000}, true, nn::zeros());
  set.allocate(device, dtype, master,
               {.ranks = &world, .stage = stage, .policy = policy, .window = 1 << 20});
  const optim::AdamW adam(set, optim::constant(1e-3));
  const optim::Window window(set, numerics);
  const auto now = Allocator::of(device).stats().live_by_category;
  const auto bytes = [&](Category c) { return now[at(c)] - before[at(c)]; };
  return {bytes(Category::kParameter), bytes(Category::kGradient), bytes(Category::kOptimizer),
          bytes(Category::kCommunication)};
}
}  // namespace

TEST_CASE("sharding: bytes per parameter are those of the table", "[optim][sharding][memory]") {
  const std::int64_t n = 10'000'000;
  // Beyond the formula: padding to whole chunks of all ranks, and small blocks of counters.
  const auto is = [&](std::int64_t bytes, double per_parameter) {
    const double over = static_cast<double>(bytes) - per_parameter * static_cast<double>(n);
    INFO(bytes << " bytes, formula " << per_parameter << " each");
    CHECK(over > -1);
    CHECK(over < 0.005 * static_cast<double>(n) * (per_parameter + 1));
  };
  for (const int ranks : {2, 4, 8}) {
    const double w = ranks;
    const auto of = [&](ShardStage stage, ReducePolicy policy,
                        Numerics numerics = Numerics::kDefault,
                        MasterWeights master = MasterWeights::kDevice) {
      return held(DType::kBF16, master, numerics, stage, policy, ranks);
    };
    const auto keep = ReducePolicy::kKeepFull, each = ReducePolicy::kReduceEach;
    Held h = of(ShardStage::kNone, keep);
    is(h.parameters, 2 + 4);
    is(h.gradients, 4);
    is(h.optimizer, 8);
    for (const ShardStage stage : {ShardStage::kOptimizer, ShardStage::kGradients}) {
      h = of(stage, keep);
      is(h.parameters, 2 + 4 / w);
      is(h.gradients, 4);
      is(h.optimizer, 8 / w);
      h = of(stage, keep, Numerics::kExact);
      is(h.gradients, 4 + 8);
    }
    h = of(ShardStage::kGradients, each);
    is(h.parameters, 2 + 4 / w);
    is(h.gradients, 4 / w);
    is(h.optimizer, 8 / w);
    h = of(ShardStage::kGradients, each, Numerics::kExact);
    is(h.gradients, (4 + 8) / w);
    h = of(ShardStage::kGradients, each, Numerics::kDefault, MasterWeights::kNone);
    is(h.parameters, 2);
    CHECK(h.communication == 0);
    for (const ReducePolicy policy : {keep, each}) {
      h = of(ShardStage::kParameters, policy);
      is(h.parameters, (2 + 4) / w);
      is(h.gradients, policy == each ? 4 / w : 4);
      is(h.optimizer, 8 / w);
      // Each parameter lies in one window or two: room for four.
      CHECK(h.communication == 4 * (1 << 20) * 2);
    }
    h = of(ShardStage::kParameters, each, Numerics::kExact);
    is(h.gradients, (4 + 8) / w);
    h = of(ShardStage::kParameters, each, Numerics::kDefault, MasterWeights::kNone);
    is(h.parameters, 2 / w);
    h = held(DType::kF32, MasterWeights::kDevice, Numerics::kDefault, ShardStage::kParameters, each,
             ranks);
    is(h.parameters, 4 / w);
    h = held(DType::kF32, MasterWeights::kDevice, Numerics::kDefault, ShardStage::kGradients, each,
             ranks);
    is(h.parameters, 4);
  }
}

TEST_CASE("sharding: meta predicts every rank's peak to the byte", "[optim][sharding][memory]") {
  const auto each = GENERATE(true, false);
  const auto numerics = GENERATE(Numerics::kDefault, Numerics::kExact);
  const auto stage = GENERATE(ShardStage::kGradients, ShardStage::kParameters);
  if (!default_device().is_cpu() && stage == ShardStage::kParameters && !each) return;
  const int ranks = 3;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto run = [&](Device device) {
      const ReuseScope reuse(device, false);
      Allocator& memory = Allocator::of(device);
      const auto live = memory.stats().live;
      LoneRank world(rank, ranks);
      memory.reset_peak();
      ParameterSet set;
      nn::Gpt gpt(set, tiny_config());
      set.allocate(device, DType::kBF16, MasterWeights::kDevice,
                   {.ranks = &world,
                    .stage = stage,
                    .policy = each ? ReducePolicy::kReduceEach : ReducePolicy::kKeepFull,
                    .window = 1});
      nn::initialize(set, 1);
      optim::AdamW adam(set, optim::constant(1e-3));
      optim::LogicalStep step(adam, set, {.micro = 2, .numerics = numerics});
      const RaggedBatch batch(4);
      const auto report = step.run(4, [&](std::int64_t first, std::int64_t count) {
        const auto micro = batch.micro(first, count, 0, kContext, device);
        return gpt.loss(micro.tokens, micro.targets, micro.random);
      });
      std::vector<std::int64_t> out{memory.stats().peak - live, report.peak - live};
      for (const std::int64_t bytes : memory.stats().peak_by_category) out.push_back(bytes);
      return out;
    };
    const auto real = run(default_device());
    const auto planned = run(Device::meta(default_device().target()));
    CHECK(real[0] == planned[0]);
    CHECK(real[1] == planned[1]);
  }
}

TEST_CASE("sharding: gradients that are reduced in each micro-batch never exist all at once",
          "[optim][sharding][memory]") {
  const Device device = Device::meta();
  const auto peak = [&](ReducePolicy policy) {
    LoneRank world(1, 2);
    ParameterSet set;
    nn::GptConfig config = tiny_config();
    config.layers = 12;
    nn::Gpt gpt(set, config);
    Allocator& memory = Allocator::of(device);
    const auto gradients = [&](const CategoryBytes& b) {
      return b[at(Category::kGradient)] + b[at(Category::kCommunication)];
    };
    const auto before = gradients(memory.stats().live_by_category);
    set.allocate(device, DType::kBF16, MasterWeights::kDevice,
                 {.ranks = &world, .stage = ShardStage::kGradients, .policy = policy, .window = 1});
    optim::Window window(set);
    memory.reset_peak();
    const auto micro = RaggedBatch(2).micro(0, 2, 0, kContext, device);
    Tape tape;
    const Tape::Scope on(tape);
    window.add(tape, gpt.loss(micro.tokens, micro.targets, micro.random));
    return std::pair{gradients(memory.stats().peak_by_category) - before, set.padded() * 4};
  };
  const auto [full, all] = peak(ReducePolicy::kKeepFull);
  const auto [each, again] = peak(ReducePolicy::kReduceEach);
  CHECK(full >= all);
  CHECK(again == all);
  // Half of it, two buffers of 8,192 numbers and the gradients that wait for theirs.
  CHECK(each < all / 2 + 4 * 8192 * 4 + 40'000);
}

// Ranks that divide the optimizer's state and the gradients: the step of one rank.
#include "tests/optim/sharded_training.h"
#include "tests/support/cases.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("B17, B18, B27: sharded state and gradients over 1 to 8 ranks, the step of one rank",
          "[optim][sharding]") {
  const bool cpu = default_device().is_cpu();
  const int ranks = GENERATE(1, 2, 3, 4, 6, 8);
  if (!cpu && ranks != 3) return;  // the simulated device is slow
  if (kWatched && ranks != 1 && ranks != 3) return;
  for (const Numerics numerics : {Numerics::kDefault, Numerics::kExact}) {
    if (!cpu && numerics == Numerics::kDefault) continue;
    Case c{.numerics = numerics, .steps = cpu ? 3 : 1};
    const Result want = alone(c);
    for (const auto& [stage, policy] :
         {std::pair{ShardStage::kOptimizer, ReducePolicy::kKeepFull},
          std::pair{ShardStage::kGradients, ReducePolicy::kKeepFull},
          std::pair{ShardStage::kGradients, ReducePolicy::kReduceEach}}) {
      if (!cpu && stage == ShardStage::kOptimizer) continue;
      INFO("ranks " << ranks << ", exact " << (numerics == Numerics::kExact) << ", stage "
                    << static_cast<int>(stage) << ", each "
                    << (policy == ReducePolicy::kReduceEach));
      c.stage = stage;
      c.policy = policy;
      check_equal(together(c, ranks), want, c);
    }
  }
}

TEST_CASE("sharding: bfloat16 with and without master weights, AdamW and SGD",
          "[optim][sharding]") {
  const bool cpu = default_device().is_cpu();
  const auto master = GENERATE(MasterWeights::kDevice, MasterWeights::kNone);
  const bool adam = GENERATE(true, false);
  const auto policy = GENERATE(ReducePolicy::kKeepFull, ReducePolicy::kReduceEach);
  if (!cpu && adam == (policy == ReducePolicy::kKeepFull)) return;
  for (const int ranks : cpu && !kWatched ? std::vector<int>{2, 4, 8} : std::vector<int>{2}) {
    INFO("ranks " << ranks << ", master " << (master == MasterWeights::kDevice) << ", AdamW "
                  << adam << ", each " << (policy == ReducePolicy::kReduceEach));
    const Case c{.dtype = DType::kBF16,
                 .master = master,
                 .adam = adam,
                 .numerics = Numerics::kExact,
                 .stage = ShardStage::kGradients,
                 .policy = policy,
                 .steps = cpu ? 3 : 1};
    check_equal(together(c, ranks), alone(c), c);
  }
}

TEST_CASE("B31: a step that is not finite on one rank is skipped by all", "[optim][sharding]") {
  const auto policy = GENERATE(ReducePolicy::kKeepFull, ReducePolicy::kReduceEach);
  for (const Numerics numerics : {Numerics::kDefault, Numerics::kExact}) {
    const bool each = policy == ReducePolicy::kReduceEach;
    if (!default_device().is_cpu() && each == (numerics == Numerics::kExact)) continue;
    const Case c{.numerics = numerics,
                 .stage = ShardStage::kGradients,
                 .policy = policy,
                 .steps = default_device().is_cpu() ? 3 : 2,
                 .spoiled = 1};
    const Result got = together(c, 3);
    CHECK_FALSE(got.reports[0].skip);
    CHECK(got.reports[1].skip);
    check_equal(got, alone(c), c);
  }
}

TEST_CASE("B67: state saved by four ranks goes on with one, two, three and eight, bit for bit",
          "[optim][sharding]") {
  const bool cpu = default_device().is_cpu();
  Case c{.dtype = DType::kBF16,
         .numerics = Numerics::kExact,
         .stage = ShardStage::kGradients,
         .policy = ReducePolicy::kReduceEach,
         .steps = cpu ? 2 : 1};
  const Result saved = together(c, 4);
  const Result want = alone(c, &saved);
  for (const int ranks : cpu ? std::vector<int>{2, 3, 8} : std::vector<int>{3}) {
    INFO(ranks << " ranks");
    c.stage = ranks == 3 ? ShardStage::kOptimizer : ShardStage::kGradients;
    c.policy = ranks == 8 ? ReducePolicy::kReduceEach : ReducePolicy::kKeepFull;
    check_equal(together(c, ranks, &saved), want, c);
  }
  if (!cpu) return;
  // And one that never stopped.
  c.steps *= 2;
  const Result unbroken = alone(c);
  CHECK(want.values == unbroken.values);
}

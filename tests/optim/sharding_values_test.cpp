// Ranks that divide the values too: gathered while they are read, and the step of one rank.
#include <array>
#include <accrue/nn/generate.h>
#include "tests/optim/sharded_training.h"
#include "tests/support/cases.h"

using namespace accrue;
using namespace accrue::test;

namespace {
constexpr std::array kPolicies{ReducePolicy::kKeepFull, ReducePolicy::kReduceEach};
Case divided(Numerics numerics = Numerics::kExact) {
  return {.numerics = numerics,
          .stage = ShardStage::kParameters,
          .policy = ReducePolicy::kReduceEach,
          .steps = default_device().is_cpu() ? 3 : 1};
}
}  // namespace

TEST_CASE("B17, B27: divided values over 1 to 6 ranks, the step of one rank", "[optim][sharding]") {
  const bool cpu = default_device().is_cpu();
  const int ranks = GENERATE(1, 2, 3, 4, 6);
  if (!cpu && ranks != 2) return;
  if (kWatched && ranks > 3) return;
  for (const Numerics numerics : {Numerics::kDefault, Numerics::kExact}) {
    if (!cpu && numerics == Numerics::kDefault) continue;
    Case c = divided(numerics);
    const Result want = alone(c);
    for (const ReducePolicy policy : kPolicies)
      for (const std::int64_t window : {1, 20'000}) {
        if (!cpu && window > 1) continue;
        INFO("ranks " << ranks << ", exact " << (numerics == Numerics::kExact) << ", each "
                      << (policy == ReducePolicy::kReduceEach) << ", window " << window);
        c.policy = policy;
        c.window = window;
        check_equal(together(c, ranks), want, c);
      }
  }
}

TEST_CASE("sharding: stages 0 to 3 give the same bits in default numerics",
          "[optim][sharding][cpu]") {
  for (const int ranks : {2, 3, 4}) {
    if (kWatched && ranks != 3) continue;
    Case c{.micro = kSamples, .steps = 2};  // each rank has one micro-batch
    const Result want = together(c, ranks);
    for (const ShardStage stage :
         {ShardStage::kOptimizer, ShardStage::kGradients, ShardStage::kParameters})
      for (const ReducePolicy policy : kPolicies) {
        if (stage == ShardStage::kOptimizer && policy == ReducePolicy::kReduceEach) continue;
        INFO("ranks " << ranks << ", stage " << static_cast<int>(stage) << ", each "
                      << (policy == ReducePolicy::kReduceEach));
        c.stage = stage;
        c.policy = policy;
        Result got = together(c, ranks);
        got.values.resize(want.values.size());  // without padding
        CHECK(got.values == want.values);
        CHECK(got.reports.back().norm == want.reports.back().norm);
        CHECK(got.reports.back().loss == want.reports.back().loss);
      }
  }
}

TEST_CASE("sharding: divided bfloat16 values, with and without master weights, AdamW and SGD",
          "[optim][sharding]") {
  const bool cpu = default_device().is_cpu();
  const auto master = GENERATE(MasterWeights::kDevice, MasterWeights::kNone);
  const bool adam = GENERATE(true, false);
  if (!cpu && adam == (master == MasterWeights::kNone)) return;
  for (const int ranks : cpu ? std::vector<int>{2, 4} : std::vector<int>{2}) {
    INFO("ranks " << ranks << ", master " << (master == MasterWeights::kDevice) << ", AdamW "
                  << adam);
    Case c = divided();
    c.dtype = DType::kBF16;
    c.master = master;
    c.adam = adam;
    check_equal(together(c, ranks), alone(c), c);
  }
}

TEST_CASE("B31: a step of divided values that is not finite is skipped", "[optim][sharding]") {
  for (const ReducePolicy policy : kPolicies) {
    if (!default_device().is_cpu() && policy == ReducePolicy::kKeepFull) continue;
    Case c = divided();
    c.policy = policy;
    c.steps = default_device().is_cpu() ? 3 : 2;
    c.spoiled = 1;
    const Result got = together(c, default_device().is_cpu() ? 3 : 2);
    CHECK_FALSE(got.reports[0].skip);
    CHECK(got.reports[1].skip);
    check_equal(got, alone(c), c);
  }
}

TEST_CASE("B67: divided values of three ranks go on with any, in any stage, bit for bit",
          "[optim][sharding]") {
  const bool cpu = default_device().is_cpu();
  Case c = divided();
  c.dtype = DType::kBF16;
  c.steps = cpu ? 2 : 1;
  const Result saved = together(c, 3);
  const Result want = alone(c, &saved);
  for (const int ranks : cpu ? std::vector<int>{2, 3, 4} : std::vector<int>{2}) {
    INFO(ranks << " ranks");
    c.stage = ranks == 3 ? ShardStage::kGradients : ShardStage::kParameters;
    check_equal(together(c, ranks, &saved), want, c);
  }
}

TEST_CASE("B22: divided values, tied weights and recomputed blocks", "[optim][sharding]") {
  Case c = divided();
  const Result want = alone(c);
  c.recompute = true;
  check_equal(together(c, 2), want, c);
}

TEST_CASE("sharding: divided values are read without a tape, by one rank alone and as a whole",
          "[optim][sharding]") {
  const Case c{.steps = 1};
  Training one(c, nullptr);
  const RaggedBatch batch(kSamples);
  one.step(batch, 0, kSamples, 0);
  const auto evaluate = [&](Training& t) { return t.net().loss(batch, 0, 3, 9).sum.item(); };
  const nn::GenerateOptions options{.count = 4, .temperature = 0};
  const std::vector<std::int32_t> prompt{1, 2};
  const double want_loss = evaluate(one);
  const auto want_text = nn::generate(one.net().gpt, prompt, options);

  Case d = divided(Numerics::kDefault);
  constexpr int kRanks = 2;
  std::array<double, kRanks> losses{};
  std::array<std::int64_t, kRanks> differences{};
  std::vector<std::int32_t> text;
  dist::ThreadWorld(kRanks).run([&](Communicator& world) {
    Training t(d, &world);
    const auto rank = static_cast<std::size_t>(world.rank());
    t.step(batch, kSamples * world.rank() / kRanks,
           kSamples * (world.rank() + 1) / kRanks - kSamples * world.rank() / kRanks, 0);
    GatheredValues& values = *t.set().gathered();
    losses[rank] = evaluate(t);
    values.meet();
    if (rank == 0) text = nn::generate(t.net().gpt, prompt, options);
    values.meet();
    // Every parameter, as a program that saves them reads it.
    auto p = one.set().all().begin();
    for (const Parameter& q : t.set().all()) {
      const auto got = q.value.to_vector<float>(), want = (p++)->value.to_vector<float>();
      for (std::size_t i = 0; i < got.size(); ++i)
        differences[rank] += !(std::abs(got[i] - want[i]) < 1e-5f);
    }
    values.meet();
  });
  for (const double loss : losses) CHECK(loss == Approx(want_loss).epsilon(1e-4));
  CHECK(text == want_text);
  CHECK(differences == std::array<std::int64_t, kRanks>{});
}

TEST_CASE("sharding: windows of divided values are gathered before they are needed",
          "[optim][sharding]") {
  Case c = divided(Numerics::kDefault);
  c.micro = 1;
  std::array<GatheredValues::Counts, 2> first{}, later{};
  dist::ThreadWorld(2).run([&](Communicator& world) {
    Training t(c, &world);
    const auto rank = static_cast<std::size_t>(world.rank());
    const RaggedBatch batch(4);
    t.step(batch, 2 * world.rank(), 1, 0);
    first[rank] = t.set().gathered()->counts();
    t.step(batch, 2 * world.rank(), 2, 1);
    later[rank] = t.set().gathered()->counts();
  });
  for (std::size_t r = 0; r < 2; ++r) {
    const auto gathered = later[r].gathered - first[r].gathered;
    INFO(first[r].gathered << " " << gathered << ", ahead " << later[r].ahead);
    CHECK(gathered > 0);
    CHECK(later[r].for_others == 0);
  }
}

TEST_CASE("sharding: ranks with other numbers of micro-batches are told so",
          "[optim][sharding][cpu]") {
  std::array<std::string, 2> said;
  dist::ThreadWorld(2).run([&](Communicator& world) {
    Training t(divided(), &world);
    said[static_cast<std::size_t>(world.rank())] = error_of([&] {
      if (world.rank() == 0) {
        optim::Window window(t.set());
        Tape tape;
        const Tape::Scope on(tape);
        window.add(tape, t.net().loss(RaggedBatch(1), 0, 1, 0));
      } else {
        t.set().gathered()->meet();
      }
    });
  });
  CHECK(said[1].find("need as many micro-batches") != std::string::npos);
  CHECK_FALSE(said[0].empty());
}

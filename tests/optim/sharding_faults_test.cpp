// Ranks that divide the set, when something goes wrong on one of them; and how often they talk.
#include <array>
#include <atomic>
#include "tests/optim/sharded_training.h"

using namespace accrue;
using namespace accrue::test;

namespace {
Case each(Numerics numerics, ShardStage stage = ShardStage::kGradients) {
  return {.numerics = numerics, .stage = stage, .policy = ReducePolicy::kReduceEach, .steps = 2};
}
}  // namespace

TEST_CASE("B60: memory runs out on one rank while gradients are on their way; all do it again",
          "[optim][sharding][step]") {
  const auto numerics = GENERATE(Numerics::kDefault, Numerics::kExact);
  const bool in_backward = GENERATE(true, false);
  const auto stage = GENERATE(ShardStage::kGradients, ShardStage::kParameters);
  if (!default_device().is_cpu() && (in_backward == (numerics == Numerics::kDefault) ||
                                     in_backward == (stage == ShardStage::kGradients)))
    return;
  const Case c = each(numerics, stage);
  const RaggedBatch batch(kSamples);
  Result got;
  std::mutex mutex;
  std::atomic<int> restarts{0};
  dist::ThreadWorld(3).run([&](Communicator& world) {
    const int rank = world.rank();
    Training t(c, &world);
    const std::int64_t first = kSamples * rank / 3, count = kSamples * (rank + 1) / 3 - first;
    bool failed = false;
    const auto fail = [&] {
      if (!std::exchange(failed, true)) throw OutOfMemory("no room", 0, 0, 0, {});
    };
    std::vector<optim::StepReport> reports;
    for (int i = 0; i < c.steps; ++i) {
      if (i == 1 && in_backward) t.net().at_the_end = fail;
      const auto report = t.logical().run(count, [&](std::int64_t at, std::int64_t n) {
        if (i == 1 && !in_backward && rank == 2 && at > 0) fail();
        return t.net().loss(batch, first + at, n, static_cast<std::uint64_t>(i));
      });
      reports.push_back(report.read());
      restarts += report.restarts;
    }
    const std::lock_guard lock(mutex);
    CHECK(failed == (rank == 2));
    t.collect(got, rank);
    if (rank == 0) got.reports = reports;
  });
  CHECK(restarts == 1);
  check_equal(got, alone(c), c);
}

TEST_CASE("B60: what one rank cannot do is left by all, and nothing changes",
          "[optim][sharding][step]") {
  const auto policy = GENERATE(ReducePolicy::kKeepFull, ReducePolicy::kReduceEach);
  const bool memory = GENERATE(true, false);
  const auto stage = GENERATE(ShardStage::kGradients, ShardStage::kParameters);
  if (!default_device().is_cpu() && (memory == (policy == ReducePolicy::kKeepFull) ||
                                     memory == (stage == ShardStage::kGradients)))
    return;
  Case c = each(Numerics::kExact, stage);
  c.policy = policy;
  const RaggedBatch batch(kSamples);
  Result before, after, end;
  std::mutex mutex;
  std::vector<std::string> said(3);
  dist::ThreadWorld(3).run([&](Communicator& world) {
    const int rank = world.rank();
    Training t(c, &world);
    const std::int64_t first = kSamples * rank / 3, count = kSamples * (rank + 1) / 3 - first;
    std::vector<optim::StepReport> reports{t.step(batch, first, count, 0)};
    {
      const std::lock_guard lock(mutex);
      t.collect(before, rank);
    }
    try {
      t.logical().run(count, [&](std::int64_t at, std::int64_t n) -> Loss {
        if (rank == 1 && at > 0 && memory) throw OutOfMemory("never enough", 0, 0, 0, {});
        if (rank == 1 && at > 0) throw Error(ErrorCode::kIo, "the disk is gone");
        return t.net().loss(batch, first + at, n, 1);
      });
    } catch (const Error& e) {
      said[static_cast<std::size_t>(rank)] = e.what();
    }
    {
      const std::lock_guard lock(mutex);
      t.collect(after, rank);
    }
    reports.push_back(t.step(batch, first, count, 1));
    const std::lock_guard lock(mutex);
    t.collect(end, rank);
    if (rank == 0) end.reports = reports;
  });
  INFO(said[0] << "; " << said[1]);
  CHECK(said[1].find(memory ? "never enough" : "the disk is gone") != std::string::npos);
  CHECK(said[0].find(memory ? "rank 1 ran out of memory" : "rank 1 failed") != std::string::npos);
  CHECK(said[2] == said[0]);
  CHECK(after.values == before.values);
  CHECK(after.state == before.state);
  check_equal(end, alone(c), c);
}

TEST_CASE("B13, B19: collectives of a step, for one and several micro-batches",
          "[optim][sharding]") {
  const auto count = [](ReducePolicy policy, std::int64_t micro) {
    Case c = each(Numerics::kDefault);
    c.policy = policy;
    c.micro = micro;
    std::int64_t collectives = 0;
    dist::ThreadWorld(2).run([&](Communicator& world) {
      Training t(c, &world);
      const RaggedBatch batch(4);
      const std::int64_t before = world.stats().collectives;
      t.step(batch, 2 * world.rank(), 2, 0);
      if (world.rank() == 0) collectives = world.stats().collectives - before;
    });
    return collectives;
  };
  const std::int64_t windows = 3;         // 22,000 numbers in windows of 2 x 4096
  const std::int64_t rest = windows + 2;  // values; loss and weight, squares
  CHECK(count(ReducePolicy::kKeepFull, 2) == windows + rest);
  CHECK(count(ReducePolicy::kKeepFull, 1) == windows + rest);
  CHECK(count(ReducePolicy::kReduceEach, 2) == windows + rest);
  CHECK(count(ReducePolicy::kReduceEach, 1) == 2 * windows + rest);
}

TEST_CASE("B22: tied weights and recomputed blocks with gradients that leave in each micro-batch",
          "[optim][sharding]") {
  Case c = each(Numerics::kExact);
  const Result want = alone(c);
  c.recompute = true;
  check_equal(together(c, 2), want, c);
}

TEST_CASE("sharding: what cannot be done is said", "[optim][sharding]") {
  ParameterSet set;
  const Net net(set);
  const auto allocate = [&](const Sharding& s, MasterWeights master = MasterWeights::kDevice) {
    return error_of([&] { set.allocate(default_device(), DType::kBF16, master, s); });
  };
  CHECK(allocate({.stage = ShardStage::kOptimizer}) ==
        "ParameterSet: sharding needs a communicator");
  std::array<std::vector<std::string>, 2> wrong;  // by rank
  dist::ThreadWorld(2).run([&](Communicator& world) {
    const auto expect = [&](const std::string& text, std::string_view part) {
      if (text.find(part) == std::string::npos)
        wrong[static_cast<std::size_t>(world.rank())].push_back(text);
    };
    ParameterSet own;
    const Net its(own);
    const auto here = [&](const Sharding& s, MasterWeights master = MasterWeights::kDevice) {
      return error_of([&] { own.allocate(default_device(), DType::kBF16, master, s); });
    };
    expect(here({.ranks = &world,
                 .stage = ShardStage::kOptimizer,
                 .policy = ReducePolicy::kReduceEach}),
           "only where they are sharded");
    // The ranks want different things.
    expect(here({.ranks = &world,
                 .stage = world.rank() == 0 ? ShardStage::kOptimizer : ShardStage::kGradients}),
           "ParameterSet: the ranks' parameters, dtypes or shardings differ");
    ParameterSet third;
    const Net again(third);
    third.allocate(default_device(), DType::kBF16, MasterWeights::kDevice,
                   {.ranks = &world, .stage = ShardStage::kOptimizer});
    expect(error_of([&] { optim::AdamW(third, optim::constant(1e-3), {}, {.on_host = true}); }),
           "cannot be on the host yet");
    // A backward outside of a window has nowhere to write.
    ParameterSet fourth;
    const Net last(fourth);
    fourth.allocate(
        default_device(), DType::kF32, MasterWeights::kDevice,
        {.ranks = &world, .stage = ShardStage::kGradients, .policy = ReducePolicy::kReduceEach});
    nn::initialize(fourth, 1);
    Tape tape;
    const Tape::Scope on(tape);
    const Loss loss = last.loss(RaggedBatch(1), 0, 1, 0);
    expect(error_of([&] { tape.backward(loss.sum); }), "through a Window");
  });
  for (const auto& texts : wrong) CHECK(texts == std::vector<std::string>{});
}

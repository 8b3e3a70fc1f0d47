// Ranks that train together over NCCL take the step of one rank on one GPU.
#include "tests/dist/nccl_support.h"
#if ACCRUE_HAS_NCCL
  #include <accrue/core/hash.h>
  #include "tests/support/small_model.h"

using namespace accrue;
using namespace accrue::test;
using optim::Numerics;

namespace {
constexpr std::int64_t kSamples = 5;

struct Outcome {
  std::uint64_t hash = 0;
  std::vector<float> weights{};
  double loss = 0;
  std::int64_t collectives = 0;  // of a step
};

Outcome train(Communicator* ranks, Numerics numerics, ShardStage stage, std::int64_t micro) {
  const int rank = ranks ? ranks->rank() : 0, size = ranks ? ranks->size() : 1;
  const RaggedBatch batch(kSamples);
  const std::int64_t first = kSamples * rank / size, last = kSamples * (rank + 1) / size;
  SmallModel m(DType::kF32, {.ranks = ranks, .stage = stage, .window = 200, .first_window = 64});
  optim::LogicalStep step(*m.adam, m.set, {.micro = micro, .numerics = numerics});
  Outcome out;
  for (std::uint64_t i = 0; i < 2; ++i) {
    const std::int64_t before = ranks ? ranks->stats().collectives : 0;
    const auto report = step.run(last - first, [&](std::int64_t from, std::int64_t count) {
      return m.loss(batch.micro(first + from, count, i, kContext));
    });
    out.loss = report.read().loss;
    out.collectives = (ranks ? ranks->stats().collectives : 0) - before;
  }
  out.weights = m.weights();
  out.hash = hash64(m.set.values().window(0, {m.set.padded()}));  // without what ranks pad
  return out;
}

std::vector<Outcome> train_on(int ranks, Numerics numerics, ShardStage stage,
                              std::int64_t micro = 1) {
  std::vector<Outcome> all(static_cast<std::size_t>(ranks));
  CHECK(on_nccl(ranks, [&](Communicator& c) {
          all[static_cast<std::size_t>(c.rank())] = train(&c, numerics, stage, micro);
        }) == nothing(ranks));
  return all;
}
Outcome train_alone(Numerics numerics, std::int64_t micro) {
  const DeviceScope on(Device::cuda(0));
  return train(nullptr, numerics, ShardStage::kNone, micro);
}
}  // namespace

TEST_CASE("nccl training: exact mode has the bits of one GPU on two and three", "[dist][nccl]") {
  if (skipped_without_cuda(3)) return;
  const PatientDevices patient;
  const Outcome want = train_alone(Numerics::kExact, 0);
  for (const int ranks : {2, 3}) {
    INFO(ranks << " ranks");
    for (const Outcome& got : train_on(ranks, Numerics::kExact, ShardStage::kNone)) {
      CHECK(got.hash == want.hash);
      CHECK(got.loss == want.loss);
    }
  }
}

TEST_CASE("nccl training: default mode is within 1e-6 of one GPU, the ranks the same bits",
          "[dist][nccl]") {
  if (skipped_without_cuda(3)) return;
  const PatientDevices patient;
  const Outcome want = train_alone(Numerics::kDefault, 0);
  for (const int ranks : {2, 3}) {
    INFO(ranks << " ranks");
    const auto all = train_on(ranks, Numerics::kDefault, ShardStage::kNone);
    for (const Outcome& got : all) {
      CHECK(apart(got.weights, want.weights) < 1e-6);
      CHECK(std::abs(got.loss - want.loss) < 1e-6 * std::abs(want.loss));
      CHECK(got.hash == all[0].hash);
      CHECK(got.collectives > 0);
    }
  }
}

TEST_CASE("nccl training: no more collectives with more micro-batches (B13)", "[dist][nccl]") {
  if (skipped_without_cuda(2)) return;
  const PatientDevices patient;
  const auto one = train_on(2, Numerics::kDefault, ShardStage::kNone, 0);
  const auto many = train_on(2, Numerics::kDefault, ShardStage::kNone, 1);
  CHECK(many[0].collectives == one[0].collectives);
}

TEST_CASE("nccl training: divided state and gradients change nothing", "[dist][nccl]") {
  if (skipped_without_cuda(2)) return;
  const PatientDevices patient;
  const ShardStage stage = GENERATE(ShardStage::kOptimizer, ShardStage::kGradients);
  const Outcome exact = train_alone(Numerics::kExact, 0);
  for (const Outcome& got : train_on(2, Numerics::kExact, stage)) {
    CHECK(got.hash == exact.hash);
    CHECK(got.loss == exact.loss);
  }
  const Outcome want = train_alone(Numerics::kDefault, 0);
  for (const Outcome& got : train_on(2, Numerics::kDefault, stage))
    CHECK(std::abs(got.loss - want.loss) < 1e-6 * std::abs(want.loss));
}
#endif

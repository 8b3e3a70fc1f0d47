// Training goes on from a checkpoint with other ranks, another stage and other micro-batches.
#include <cmath>
#include <accrue/dist/checkpoint.h>
#include "tests/optim/sharded_training.h"
#include "tests/support/simulated_disk.h"

using namespace accrue;
using namespace accrue::test;

namespace {
struct Division {
  int ranks = 1;
  ShardStage stage = ShardStage::kNone;
  ReducePolicy policy = ReducePolicy::kKeepFull;
  std::int64_t micro = 2;
};
constexpr int kBefore = 2, kAfter = 2;

// Everything that the next step needs, as this rank has it.
std::vector<dist::CheckpointTensor> tensors_of(Training& t, const Case& c) {
  ParameterSet& set = t.set();
  std::vector<dist::CheckpointTensor> all;
  const auto whole = [&](const std::string& prefix, const Tensor& block) {
    for (const Parameter& p : set.all())
      all.push_back(dist::replicated(prefix + p.name, block.window(p.offset, {p.size})));
  };
  whole("value.", set.values());
  if (!set.sharded() && c.dtype == DType::kBF16) whole("master.", set.master());
  for (const auto& s : t.logical().optimizer().state()) {
    if (!set.sharded()) {
      whole(s.name + ".", s.tensor);
      continue;
    }
    for (const auto& piece : s.pieces)
      for (auto& part : dist::parts_of(set, s.name + ".", s.tensor.window(piece.at, {piece.count}),
                                       piece.first)) {
        part.shape = {part.shape.numel()};
        all.push_back(std::move(part));
      }
  }
  if (c.numerics == Numerics::kExact)
    all.push_back(dist::replicated("exponents", t.logical().window().exponents()));
  return all;
}

// Steps [first, first + count); from the checkpoint of `first`, and one in the end.
Result train(Case c, const Division& d, int first, int count, FileSystem& disk) {
  c.stage = d.stage;
  c.policy = d.policy;
  c.micro = d.micro;
  const RaggedBatch batch(kSamples);
  Result out;
  std::mutex mutex;
  dist::ThreadWorld(d.ranks).run([&](Communicator& world) {
    const int rank = world.rank();
    Training t(c, &world);
    dist::Checkpointer checkpointer({.folder = "/run", .asynchronous = false}, world, disk);
    if (first > 0) {
      const auto info = checkpointer.at(first);
      checkpointer.load(info, tensors_of(t, c));
      t.logical().optimizer().restore_counters(std::stoll(info.metadata.at("step")),
                                               std::stoll(info.metadata.at("skipped")));
      if (c.numerics == Numerics::kExact)
        t.logical().window().restore_exponents(t.logical().window().exponents().clone());
    }
    const std::int64_t begin = kSamples * rank / d.ranks, end = kSamples * (rank + 1) / d.ranks;
    optim::StepReport report;
    for (int i = first; i < first + count; ++i) report = t.step(batch, begin, end - begin, i);
    checkpointer.save(
        {first + count,
         "the config",
         {{"step", std::to_string(report.step)}, {"skipped", std::to_string(report.skipped)}},
         tensors_of(t, c)});
    const std::lock_guard lock(mutex);
    t.collect(out, rank);
    if (rank == 0) out.reports = {report};
  });
  return out;
}
}  // namespace

TEST_CASE("scenario 24, B67: training goes on with other ranks, stages and micro-batches",
          "[dist][ranks][checkpoint]") {
  const bool cpu = default_device().is_cpu();
  const auto numerics = GENERATE(Numerics::kExact, Numerics::kDefault);
  const auto dtype = GENERATE(DType::kF32, DType::kBF16);
  if (!cpu && (numerics == Numerics::kDefault || dtype == DType::kF32)) return;
  const Case c{.dtype = dtype, .numerics = numerics};
  SimulatedDisk straight;
  const Result want = train(c, {}, 0, kBefore + kAfter, straight);
  const std::vector<std::pair<Division, Division>> all{
      {{1}, {3, ShardStage::kGradients, ReducePolicy::kReduceEach, 1}},
      {{4, ShardStage::kGradients, ReducePolicy::kReduceEach, 1}, {1, ShardStage::kNone, {}, 7}},
      {{2, ShardStage::kOptimizer, ReducePolicy::kKeepFull, 3}, {4, ShardStage::kNone, {}, 2}},
      {{3, ShardStage::kNone, {}, 2}, {2, ShardStage::kOptimizer, ReducePolicy::kKeepFull, 1}},
      {{2, ShardStage::kGradients, ReducePolicy::kKeepFull, 2},
       {6, ShardStage::kGradients, ReducePolicy::kReduceEach, 2}}};
  for (const auto& [before, after] : all) {
    if (!cpu && before.ranks != 3) continue;
    INFO("from " << before.ranks << " ranks, stage " << static_cast<int>(before.stage) << " to "
                 << after.ranks << ", stage " << static_cast<int>(after.stage));
    SimulatedDisk disk;
    train(c, before, 0, kBefore, disk);
    const Result got = train(c, after, kBefore, kAfter, disk);
    check_equal(got, want, c);
    CHECK(got.reports[0].step == kBefore + kAfter);
  }
}

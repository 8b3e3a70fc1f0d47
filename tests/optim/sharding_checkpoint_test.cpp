// Checkpoints of ranks that divide the set: any ranks and stage go on with what any others saved.
#include "tests/optim/training_state.h"
#include "tests/support/simulated_disk.h"

using namespace accrue;
using namespace accrue::test;

namespace {
struct Ranks {
  int count;
  ShardStage stage;
  ReducePolicy policy = ReducePolicy::kKeepFull;
};
}  // namespace

TEST_CASE("scenario 24, B67: a checkpoint of divided parameters goes on in any stage, bit for bit",
          "[optim][sharding][checkpoint]") {
  const bool cpu = default_device().is_cpu();
  const auto dtype = GENERATE(DType::kF32, DType::kBF16);
  if (!cpu && dtype == DType::kF32) return;
  const auto each = ReducePolicy::kReduceEach;
  const std::vector<Ranks> all =
      cpu ? std::vector<Ranks>{{3, ShardStage::kParameters, each},
                               {2, ShardStage::kParameters},
                               {1, ShardStage::kNone},
                               {2, ShardStage::kOptimizer},
                               {4, ShardStage::kGradients, each},
                               {4, ShardStage::kParameters, each}}
          : std::vector<Ranks>{{3, ShardStage::kParameters, each}, {2, ShardStage::kParameters}};
  Case c{.dtype = dtype, .numerics = Numerics::kExact, .steps = 2};
  const Result want = alone(c);
  const RaggedBatch batch(kSamples);
  const auto begin_of = [](int rank, int ranks) { return kSamples * rank / ranks; };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Ranks &from = all[i], &to = all[(i + 1) % all.size()];
    INFO(from.count << " ranks, stage " << static_cast<int>(from.stage) << "; then " << to.count
                    << ", stage " << static_cast<int>(to.stage));
    SimulatedDisk disk;
    const dist::CheckpointOptions options{.folder = "/run", .asynchronous = false};
    const auto with = [&](const Ranks& r) {
      Case now = c;
      now.stage = r.stage;
      now.policy = r.policy;
      return now;
    };
    dist::ThreadWorld(from.count).run([&](Communicator& world) {
      Training t(with(from), &world);
      const std::int64_t first = begin_of(world.rank(), from.count);
      const auto report = t.step(batch, first, begin_of(world.rank() + 1, from.count) - first, 0);
      dist::Checkpointer(options, world, disk).save(state_of(t, report));
    });
    Result got;
    std::mutex mutex;
    dist::ThreadWorld(to.count).run([&](Communicator& world) {
      Training t(with(to), &world);
      dist::Checkpointer checkpointer(options, world, disk);
      load_state(t, checkpointer, *checkpointer.latest());
      const std::int64_t first = begin_of(world.rank(), to.count);
      const auto report = t.step(batch, first, begin_of(world.rank() + 1, to.count) - first, 1);
      const std::lock_guard lock(mutex);
      t.collect(got, world.rank());
      if (world.rank() == 0) got.reports = {report};
    });
    Result last = want;
    last.reports.erase(last.reports.begin());
    check_equal(got, last, c);
  }
}

// Saves by ranks of which one dies: at any of its calls to the disk or to the others.
#include <accrue/dist/self.h>
#include "tests/simworld/cases.h"
#include "tests/simworld/dying_disks.h"
#include "tests/support/checkpoint_state.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE(
    "simulated world: scenario 14, a rank dies anywhere in a save: the newest complete "
    "checkpoint loads, never a mix, never older than acknowledged",
    "[simworld]") {
  constexpr int kRanks = 3, kSaves = 3;
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  const dist::CheckpointOptions options{.folder = "/run", .asynchronous = false, .chunk = 64};
  int died = 0, at_disk = 0, newer = 0;
  for (const std::uint64_t seed : seeds(kind == Kind::kThreads ? 600 : 150)) {
    SimulatedDisk disk;
    disk.mkdir("/run", 0777);
    const auto victim = static_cast<int>(mix64(seed) % kRanks);
    const bool on_disk = mix64(seed + 1) % 3 != 0;
    const auto when = static_cast<std::int64_t>(mix64(seed + 2) % (on_disk ? 60 : 40));
    std::int64_t acknowledged = 0, begun = 0;
    SimWorld world({.kind = kind, .ranks = kRanks, .seed = seed});
    const auto disks = dying_disks(world, disk, kRanks, victim, on_disk ? when : 0, &at_disk);
    world.run([&](SimCommunicator& ranks) {
      if (ranks.rank() == victim && !on_disk)
        ranks.before = [&](std::int64_t number, std::string_view) {
          if (number == when) world.die();
        };
      dist::Checkpointer checkpointer(options, ranks,
                                      *disks[static_cast<std::size_t>(ranks.rank())]);
      for (std::int64_t step = 1; step <= kSaves; ++step) {
        begun = std::max(begun, step);
        checkpointer.save(state_of(step, ranks.rank(), kRanks));
        acknowledged = std::max(acknowledged, checkpointer.acknowledged());
      }
    });
    INFO(world.text());
    CHECK(world.trouble() == "");
    const bool dead = world.ranks()[static_cast<std::size_t>(victim)].died;
    died += dead;
    for (int r = 0; r < kRanks; ++r)
      if (!(dead && r == victim))
        CHECK(world.ranks()[static_cast<std::size_t>(r)].code() == (dead ? 75 : 0));
    const auto self = dist::self_communicator();
    dist::Checkpointer reader(options, *self, disk);
    const auto found = reader.latest();
    const std::int64_t step = found ? found->step : 0;
    CHECK(step >= acknowledged);
    CHECK(step <= begun);
    newer += step > acknowledged;
    if (found) CHECK(loads_right(reader, *found, 0, 1));
    if (found) CHECK(found->passed_over.empty());
    // Whoever comes next clears away what is left.
    if (seed % 10 == 0) {
      reader.save(state_of(10, 0, 1));
      CHECK(reader.latest()->step == 10);
    }
  }
  if (!all_seeds()) return;
  CHECK(died > (kind == Kind::kThreads ? 300 : 75));
  CHECK(at_disk > (kind == Kind::kThreads ? 100 : 25));
  CHECK(newer > 0);  // it was renamed, and nobody could say so any more
}

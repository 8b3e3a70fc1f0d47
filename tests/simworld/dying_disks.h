#pragma once
// A simulated disk as the ranks of a simulated world see it.
#include <cerrno>
#include <cstdint>
#include <memory>
#include <vector>
#include "tests/simworld/sim_world.h"
#include "tests/support/fault_at.h"
#include "tests/support/simulated_disk.h"

namespace accrue::test {
/// One for each rank of the world. Every call is a point at which others may go on; at its call
/// number `when` (from 1; 0: never) the victim dies, and *died counts it. The dead do nothing more.
inline std::vector<std::unique_ptr<FaultAt>> dying_disks(SimWorld& world, SimulatedDisk& disk,
                                                         int ranks, int victim, std::int64_t when,
                                                         int* died) {
  std::vector<std::unique_ptr<FaultAt>> disks;
  for (int r = 0; r < ranks; ++r) {
    disks.push_back(std::make_unique<FaultAt>(disk));
    FaultAt& mine = *disks.back();
    mine.at = 1;
    mine.count = std::int64_t{1} << 40;
    mine.fault = [&world, &mine, r, victim, when, died](const char*) {
      if (world.ranks()[static_cast<std::size_t>(r)].died) return EIO;
      if (world.rank() < 0) return 0;
      world.point();
      if (r != victim || when == 0 || mine.calls != when) return 0;
      ++*died;
      world.stop_here();
      return EIO;
    };
  }
  return disks;
}
}  // namespace accrue::test

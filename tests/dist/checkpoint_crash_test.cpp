// Power loss: every state in which four saves by three ranks can leave a disk.
#include <atomic>
#include <cmath>
#include <set>
#include <accrue/core/hash.h>
#include <accrue/core/print.h>
#include <accrue/dist/self.h>
#include "tests/support/baton.h"
#include "tests/support/cases.h"
#include "tests/support/catch.h"
#include "tests/support/checkpoint_state.h"
#include "tests/support/fault_at.h"
#include "tests/support/simulated_disk.h"

using namespace accrue;
using namespace accrue::test;

namespace {
constexpr int kRanks = 3, kSaves = 4, kRandomOutcomes = cases(40, 8);

// Ways to save and to load.
struct Protocol {
  std::function<void(Peers&, FileSystem&, std::int64_t step)> save;
  struct Found {
    std::int64_t step = -1;  // -1: nothing
    bool right = true;
  };
  std::function<Found(FileSystem&)> load;
};

Protocol ours() {
  const dist::CheckpointOptions options{.folder = "/run/out", .asynchronous = false, .chunk = 64};
  return {[options](Peers& peers, FileSystem& fs, std::int64_t step) {
            dist::Checkpointer checkpointer(options, peers, fs);
            checkpointer.save(state_of(step, peers.rank(), peers.size()));
          },
          [options](FileSystem& fs) {
            const auto self = dist::self_communicator();
            dist::Checkpointer checkpointer(options, *self, fs);
            try {
              const auto info = checkpointer.latest();
              if (!info) return Protocol::Found{};
              return Protocol::Found{info->step, loads_right(checkpointer, *info, 0, 1)};
            } catch (const Error&) {
              return Protocol::Found{};
            }
          }};
}

// Files, then an empty file that says so.
Protocol done_file() {
  const auto text_of = [](std::int64_t step, int rank) {
    return std::string(100, static_cast<char>('a' + step * kRanks + rank));
  };
  const auto path = [](std::int64_t step) { return "/run/step-" + std::to_string(step); };
  return {[=](Peers& peers, FileSystem& fs, std::int64_t step) {
            const std::string text = text_of(step, peers.rank());
            OutputFile file(path(step) + "-" + std::to_string(peers.rank()), fs);
            file.append(std::as_bytes(std::span(text)));
            barrier(peers);
            if (peers.rank() == 0) OutputFile(path(step) + "-DONE", fs);
            barrier(peers);
          },
          [=](FileSystem& fs) {
            for (std::int64_t step = kSaves; step > 0; --step) try {
                InputFile(path(step) + "-DONE", fs);
                Protocol::Found found{step, true};
                for (int rank = 0; rank < kRanks; ++rank) {
                  const InputFile file(path(step) + "-" + std::to_string(rank), fs);
                  std::string text(static_cast<std::size_t>(file.size()), ' ');
                  file.read(0, std::as_writable_bytes(std::span(text)));
                  found.right = found.right && text == text_of(step, rank);
                }
                return found;
              } catch (const Error&) {}
            return Protocol::Found{};
          }};
}

struct Counts {
  std::size_t states = 0, corrupt = 0, lost = 0, older = 0;
};
std::ostream& operator<<(std::ostream& out, const Counts& c) {
  return out << c.states << " states, " << c.corrupt << " load what is wrong, " << c.lost
             << " load nothing after a save was acknowledged, " << c.older << " load an older one";
}

Counts crash_everywhere(const Protocol& protocol, std::uint64_t seed, bool syncs_files = true,
                        bool syncs_folders = true) {
  SimulatedDisk disk;
  disk.mkdir("/run", 0777);
  disk.fsync(disk.open("/", O_DIRECTORY, 0));
  disk.syncs_files = syncs_files;
  disk.syncs_folders = syncs_folders;
  Baton baton(kRanks, seed);
  std::int64_t acknowledged = -1;
  std::vector<std::pair<DiskState, std::int64_t>> history;
  disk.before = [&] {
    history.emplace_back(disk.state(), acknowledged);
    baton.yield();
  };
  for (const auto& thrown : baton.run([&](Peers& peers) {
         for (std::int64_t step = 1; step <= kSaves; ++step) {
           protocol.save(peers, disk, step);
           acknowledged = step;
         }
       }))
    if (thrown) std::rethrow_exception(thrown);
  history.emplace_back(disk.state(), acknowledged);

  Counts counts;
  std::set<std::pair<std::uint64_t, std::int64_t>> seen;
  using Kept = DiskState::Kept;
  for (const auto& [state, promised] : history)
    for (int outcome = 0; outcome < 3 + kRandomOutcomes; ++outcome) {
      const Kept kept = outcome < 3 ? static_cast<Kept>(outcome) : Kept::kRandom;
      const DiskState left = state.crashed(kept, static_cast<std::uint64_t>(outcome));
      if (!seen.emplace(hash64(left.picture()), promised).second) continue;
      ++counts.states;
      SimulatedDisk after(left);
      const Protocol::Found found = protocol.load(after);
      counts.corrupt += !found.right;
      counts.lost += promised >= 0 && found.step < 0;
      counts.older += found.step >= 0 && found.step < promised;
    }
  return counts;
}
}  // namespace

TEST_CASE("scenario 15: no power loss makes a save wrong, lost or older than was promised",
          "[dist][checkpoint][cpu]") {
  std::size_t states = 0;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const Counts counts = crash_everywhere(ours(), seed);
    INFO(counts);
    CHECK(counts.corrupt == 0);
    CHECK(counts.lost == 0);
    CHECK(counts.older == 0);
    states += counts.states;
  }
  CHECK(states >= cases(2000u, 500u));
}

TEST_CASE("scenario 15: the simulated disk finds what a missing fsync and a DONE file lose",
          "[dist][checkpoint][cpu]") {
  SECTION("no fsync of files: checksums still refuse what is wrong") {
    const Counts counts = crash_everywhere(ours(), 1, false, true);
    INFO(counts);
    CHECK(counts.corrupt == 0);
    CHECK(counts.lost > cases(100u, 40u));
  }
  SECTION("no fsync of folders") {
    const Counts counts = crash_everywhere(ours(), 1, true, false);
    INFO(counts);
    CHECK(counts.corrupt == 0);
    CHECK(counts.lost > cases(100u, 40u));
  }
  SECTION("files and a DONE file, without any fsync") {
    const Counts counts = crash_everywhere(done_file(), 1);
    INFO(counts);
    CHECK(counts.corrupt > cases(50u, 20u));
    CHECK(counts.lost > cases(100u, 40u));
  }
}

TEST_CASE("scenario 17: in any order of the ranks' calls, with any one of them failing, all agree",
          "[dist][checkpoint][cpu]") {
  SimulatedDisk first;
  first.mkdir("/run", 0777);
  const auto self = dist::self_communicator();
  ours().save(*self, first, 1);
  const DiskState start = first.state();
  int failed = 0, worked = 0;
  for (std::uint64_t seed = 0; seed < cases(300u, 80u); ++seed) {
    SimulatedDisk disk(start);
    FaultAt faulty(disk);
    Baton baton(kRanks, seed);
    disk.before = [&] { baton.yield(); };
    faulty.at = 1 + static_cast<std::int64_t>(mix64(seed) % 40);
    faulty.fault = [](const char*) { return EIO; };
    const int bad_rank = static_cast<int>(mix64(seed + 1000) % kRanks);
    std::vector<std::string> said(kRanks);
    for (const auto& thrown : baton.run([&](Peers& peers) {
           FileSystem& fs = peers.rank() == bad_rank ? static_cast<FileSystem&>(faulty) : disk;
           try {
             ours().save(peers, fs, 2);
           } catch (const Error& e) {
             said[static_cast<std::size_t>(peers.rank())] = e.what();
           }
         }))
      if (thrown) std::rethrow_exception(thrown);
    disk.before = nullptr;
    INFO("seed " << seed << ": " << said[0]);
    CHECK(said == std::vector<std::string>(kRanks, said[0]));
    const Protocol::Found found = ours().load(disk);
    CHECK(found.right);
    CHECK(found.step == (said[0].empty() ? 2 : 1));
    std::vector<std::string> names;
    CHECK(disk.list("/run/out", names) == 0);
    CHECK(names.size() == (said[0].empty() ? 2 : 1));
    ++(said[0].empty() ? worked : failed);
  }
  CHECK(failed > cases(50, 13));
  CHECK(worked > cases(50, 13));
}

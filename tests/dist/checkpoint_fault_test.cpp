// Calls that fail, ranks that die, bytes that change.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmath>
#include <cstdlib>
#include <set>
#include <accrue/dist/self.h>
#include <accrue/dist/threads.h>
#include "tests/support/cases.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/checkpoint_state.h"
#include "tests/support/fault_at.h"
#include "tests/support/simulated_disk.h"
#include "tests/support/temporary_folder.h"

using namespace accrue;
using namespace accrue::test;
using Catch::Matchers::Contains;

namespace {
dist::CheckpointOptions options_of(const std::string& folder, bool asynchronous = false) {
  return {.folder = folder, .asynchronous = asynchronous, .chunk = 64};
}
// Saves on `ranks` threads; returns what each rank says, empty where it worked.
std::vector<std::string> save(const dist::CheckpointOptions& options, std::int64_t step, int ranks,
                              const std::function<FileSystem&(int rank)>& fs) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  dist::ThreadWorld(ranks).run([&](Communicator& peers) {
    const auto rank = peers.rank();
    dist::Checkpointer checkpointer(options, peers, fs(rank));
    try {
      checkpointer.save(state_of(step, rank, ranks));
      checkpointer.wait();
      if (checkpointer.acknowledged() != step) said[static_cast<std::size_t>(rank)] = "?";
    } catch (const Error& e) {
      said[static_cast<std::size_t>(rank)] = e.what();
    }
  });
  return said;
}
// The step that is found, after its content was compared; -1: none. `why` gets what was passed
// over, or the error.
std::int64_t found(const std::string& folder, FileSystem& fs, std::string* why = nullptr) {
  const auto self = dist::self_communicator();
  dist::Checkpointer checkpointer(options_of(folder), *self, fs);
  try {
    const auto info = checkpointer.latest();
    if (!info) return -1;
    if (why)
      for (const std::string& text : info->passed_over) *why += text;
    return loads_right(checkpointer, *info, 0, 1) ? info->step : -2;
  } catch (const Error& e) {
    if (why) *why = e.what();
    return e.code() == ErrorCode::kCorrupt ? -1 : -3;
  }
}
std::vector<std::string> names_in(FileSystem& fs, const std::string& folder) {
  std::vector<std::string> names;
  CHECK(fs.list(folder.c_str(), names) == 0);
  std::sort(names.begin(), names.end());
  return names;
}
// A disk with /run, and in it a whole checkpoint of step 1 (and 2) by two ranks.
DiskState disk_with(int steps) {
  SimulatedDisk disk;
  disk.mkdir("/run", 0777);
  for (int step = 1; step <= steps; ++step)
    for (const std::string& said :
         save(options_of("/run"), step, 2, [&](int) -> FileSystem& { return disk; }))
      REQUIRE(said.empty());
  return disk.state();
}
}  // namespace

TEST_CASE("scenario 16: whatever call fails, the save fails on all ranks and leaves nothing",
          "[dist][checkpoint][cpu]") {
  const int error = GENERATE(ENOSPC, EIO, EDQUOT);
  const int bad_rank = GENERATE(0, 1);
  const bool asynchronous = GENERATE(false, true);
  if (kWatched && error != EIO) return;  // they take the same way
  const DiskState before = disk_with(1);
  std::set<std::string> failed;
  for (std::int64_t n = 1;; ++n) {
    SimulatedDisk disk(before);
    FaultAt faulty(disk);
    std::string call;
    faulty.at = n;
    faulty.fault = [&](const char* name) {
      call = name;
      return error;
    };
    const auto said = save(options_of("/run", asynchronous), 2, 2, [&](int rank) -> FileSystem& {
      return rank == bad_rank ? static_cast<FileSystem&>(faulty) : disk;
    });
    if (call.empty()) break;  // there are no more calls
    INFO("call " << n << ", " << call << " on rank " << bad_rank << ": " << said[0]);
    CHECK(said[0] == said[1]);
    if (said[0].empty()) {  // closing what was only read, and looking for what is too old
      CHECK((call == "close what was only read" || call == "list"));
      CHECK(found("/run", disk) == 2);
    } else {
      failed.insert(call);
      CHECK_THAT(said[0], Contains(std::generic_category().message(error)) &&
                              Contains("rank " + std::to_string(bad_rank)));
      CHECK(names_in(disk, "/run") == std::vector<std::string>{"step-1"});
      CHECK(found("/run", disk) == 1);
      // The disk is well again: so is the next save.
      CHECK(save(options_of("/run", asynchronous), 2, 2,
                 [&](int) -> FileSystem& { return disk; })[0] == "");
      CHECK(found("/run", disk) == 2);
    }
    REQUIRE(n < 1000);
  }
  for (const char* call : {"open", "pwrite", "fsync", "close"}) CHECK(failed.contains(call));
  if (bad_rank == 0)
    for (const char* call : {"mkdir", "rename", "list"}) CHECK(failed.contains(call));
}

TEST_CASE("scenario 16: interrupted calls and short transfers are carried on",
          "[dist][checkpoint][cpu]") {
  const DiskState before = disk_with(1);
  std::set<std::string> interrupted;
  for (std::int64_t n = 1; n < 1000; ++n) {
    SimulatedDisk disk(before);
    FaultAt faulty(disk);
    std::string call;
    faulty.at = n;
    faulty.transfer = 5;
    faulty.fault = [&](const char* name) {
      call = name;
      const bool may = call == "open" || call == "pwrite" || call == "fsync" || call == "close" ||
                       call == "rename" || call == "pread";
      return may ? EINTR : 0;
    };
    CHECK(save(options_of("/run"), 2, 1, [&](int) -> FileSystem& { return faulty; })[0] == "");
    if (call.empty()) break;
    interrupted.insert(call);
    if (n % 10 == 0) CHECK(found("/run", faulty) == 2);
  }
  for (const char* call : {"open", "pwrite", "fsync", "close", "rename"})
    CHECK(interrupted.contains(call));
}

TEST_CASE("scenario 16: a failed fsync is not repeated on the same file",
          "[dist][checkpoint][cpu]") {
  struct Counting final : FileSystem {
    explicit Counting(SimulatedDisk& d) : disk(d) {}
    SimulatedDisk& disk;
    int failures = 0;
    int open(const char* p, int flags, unsigned mode) override { return disk.open(p, flags, mode); }
    std::int64_t pwrite(int fd, const void* d, std::size_t n, std::int64_t at) override {
      return disk.pwrite(fd, d, n, at);
    }
    int fsync(int) override {
      ++failures;
      errno = EIO;
      return -1;
    }
    int close(int fd) override { return disk.close(fd); }
    int unlink(const char* p) override { return disk.unlink(p); }
    int mkdir(const char* p, unsigned mode) override { return disk.mkdir(p, mode); }
    int rmdir(const char* p) override { return disk.rmdir(p); }
    int list(const char* p, std::vector<std::string>& n) override { return disk.list(p, n); }
  };
  SimulatedDisk disk(disk_with(1));
  Counting fs(disk);
  CHECK_THAT(save(options_of("/run"), 2, 1, [&](int) -> FileSystem& { return fs; })[0],
             Contains("fsync"));
  CHECK(fs.failures == 1);
}

TEST_CASE("scenario 17: where one rank cannot write its shard, nobody acknowledges",
          "[dist][checkpoint][cpu]") {
  for (int bad_rank = 0; bad_rank < 3; ++bad_rank) {
    SimulatedDisk disk(disk_with(1));
    FaultAt faulty(disk);
    faulty.at = 1;
    faulty.count = 1000;
    faulty.fault = [](const char* call) { return call == std::string("pwrite") ? ENOSPC : 0; };
    const auto said = save(options_of("/run"), 2, 3, [&](int rank) -> FileSystem& {
      return rank == bad_rank ? static_cast<FileSystem&>(faulty) : disk;
    });
    for (const std::string& text : said)
      CHECK_THAT(text, Contains("checkpoint of step 2 failed: rank " + std::to_string(bad_rank)) &&
                           Contains("shard-" + std::to_string(bad_rank) + ".safetensors") &&
                           Contains("No space left on device"));
    CHECK(names_in(disk, "/run") == std::vector<std::string>{"step-1"});
    CHECK(found("/run", disk) == 1);
  }
}

TEST_CASE("scenario 14: a process killed at any call of a save leaves the last one whole",
          "[dist][checkpoint][cpu]") {
  int kills = 0;
  for (std::int64_t n = 1; n < 400; n += 2) {
    const TemporaryFolder folder;
    const std::string run = folder / "run";
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      FaultAt faulty(FileSystem::posix());
      faulty.at = n;
      faulty.fault = [](const char*) { return ::kill(::getpid(), SIGKILL); };
      for (std::int64_t step = 1; step <= 3; ++step) {
        const auto said =
            save(options_of(run), step, 2, [&](int) -> FileSystem& { return faulty; });
        if (!said[0].empty() || !said[1].empty()) ::_exit(2);
        write_quickly(folder / "acknowledged", std::to_string(step));
      }
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) {
      CHECK(WEXITSTATUS(status) == 0);
      break;
    }
    REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    ++kills;
    std::int64_t acknowledged = -1;
    std::ifstream(folder / "acknowledged") >> acknowledged;
    INFO("killed at call " << n << ", acknowledged was " << acknowledged);
    FileSystem& fs = FileSystem::posix();
    const std::int64_t step = found(run, fs);
    CHECK(step >= acknowledged);
    CHECK(step <= (acknowledged < 0 ? 1 : acknowledged + 1));
    if (n % 7 == 0) {  // the next process clears away what is left, and goes on
      CHECK(save(options_of(run), 10, 1, [&](int) -> FileSystem& { return fs; })[0] == "");
      CHECK(found(run, fs) == 10);
      for (const std::string& name : names_in(fs, run)) CHECK(name.starts_with("step-"));
    }
  }
  CHECK(kills >= 50);
}

TEST_CASE("scenario 18: a changed bit in any byte is found, and the one before is loaded",
          "[dist][checkpoint][cpu]") {
  SimulatedDisk disk(disk_with(2)), alone(disk_with(1));
  std::uint64_t drawn = 0;
  for (const std::string name : {"shard-0.safetensors", "shard-1.safetensors", "MANIFEST.json"}) {
    const std::string path = "/run/step-1/" + name;
    std::string& content = alone.content(path);
    for (std::size_t byte = 0; byte < content.size(); ++byte) {
      const char good = content[byte];
      content[byte] = static_cast<char>(good ^ (1 << (mix64(++drawn) >> 61)));
      std::string why;
      const std::int64_t step = found("/run", alone, &why);
      if (step != -1 || why.find(path) == std::string::npos)
        FAIL_CHECK(path << " byte " << byte << ": step " << step << ", " << why);
      content[byte] = good;
    }
  }
  CHECK(found("/run", alone) == 1);
  // With one to fall back to; which tensor it is, and where.
  std::string& shard = disk.content("/run/step-2/shard-1.safetensors");
  shard[shard.size() - 7] ^= 1;
  std::string why;
  CHECK(found("/run", disk, &why) == 1);
  CHECK_THAT(why, Contains("shard-1.safetensors: tensor \"flat\": the bytes [") &&
                      Contains(std::to_string(shard.size() - 4) + ") of the file do not match"));
  // Nothing to fall back to: an error that tells of both.
  disk.content("/run/step-1/MANIFEST.json")[100] ^= 1;
  CHECK(found("/run", disk, &why) == -1);
  CHECK_THAT(why, Contains("no checkpoint here is whole") && Contains("step-1/MANIFEST.json") &&
                      Contains("step-2/shard-1.safetensors"));
}

TEST_CASE("scenario 19, B66: a file cut at any length is found, and the one before is loaded",
          "[dist][checkpoint][cpu]") {
  SimulatedDisk disk;
  const auto self = dist::self_communicator();
  dist::Checkpointer checkpointer(options_of("/run"), *self, disk);
  const auto state = [](std::int64_t step) {
    return dist::CheckpointState{
        step, "", {}, {dist::replicated("w", Tensor::from(numbers(step, 0, 0, 2000), {2000}))}};
  };
  checkpointer.save(state(2));
  for (const std::string name : {"shard-0.safetensors", "MANIFEST.json"}) {
    std::string& content = disk.content("/run/step-2/" + name);
    const std::string good = content;
    for (std::size_t length = 0; length <= good.size() + 2; length += cases(1, 5)) {
      if (length >= 4097 && length < good.size() - 2) length = good.size() - 2;
      if (length == good.size()) continue;
      content = good;
      content.resize(length, 'x');  // longer than it was is no better
      const std::string why = error_of([&] { (void)checkpointer.latest(); });
      if (why.find("step-2/" + name) == std::string::npos)
        FAIL_CHECK(name << " cut to " << length << ": " << why);
    }
    if (name.starts_with("shard")) CHECK(good.size() > 4097);
    content = good;
  }
  CHECK(checkpointer.latest()->step == 2);
  checkpointer.save(state(3));
  disk.content("/run/step-3/shard-0.safetensors").resize(4000);
  const auto info = checkpointer.latest();
  REQUIRE(info);
  CHECK(info->step == 2);
  CHECK_THAT(info->passed_over.at(0), Contains("cut at byte 4000"));
}

// What goes wrong inside a kernel: each planted mistake is reported with its kind and line, and the
// same kernel without the mistake gives no report.
#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>
#include <simcuda/simcuda.h>
#include <tests/support/catch.h>
#include "planted_bugs.h"

namespace {

int line_of(const std::string& bug, const std::string& name = "planted_bugs.cu") {
  std::ifstream file(PROOF_SOURCES "/" + name);
  std::string line;
  const std::string mark = "// bug: " + bug;
  for (int n = 1; std::getline(file, line); ++n) {
    if (line.size() >= mark.size() &&
        line.compare(line.size() - mark.size(), mark.size(), mark) == 0)
      return n;
  }
  return -1;
}

class Fixture {
 public:
  Fixture() {
    simcuda::set_verbose(false);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    for (float** p : {&buffers.out, &buffers.in, &buffers.fresh})
      REQUIRE(cudaMalloc(reinterpret_cast<void**>(p), 4096) == cudaSuccess);
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&buffers.values), 4096) == cudaSuccess);
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&buffers.bins), 64) == cudaSuccess);
    std::vector<int> values(1024);
    for (int i = 0; i < 1024; ++i) values[static_cast<std::size_t>(i)] = i * 7 % 16;
    cudaMemcpy(buffers.values, values.data(), 4096, cudaMemcpyHostToDevice);
    cudaMemcpy(buffers.in, host.data(), 4096, cudaMemcpyHostToDevice);
    cudaMemset(buffers.bins, 0, 64);
    buffers.pageable = host.data();
  }
  std::vector<simcuda::Report> run(const std::string& name, bool bug) {
    const cudaError_t launched = run_planted(name, bug, buffers, stream);
    CHECK(launched == cudaSuccess);
    (void)cudaStreamSynchronize(stream);
    return simcuda::take_reports();
  }
  std::vector<float> host = std::vector<float>(1024, 0.5f);
  Buffers buffers{};
  cudaStream_t stream = nullptr;
};

struct Bug {
  const char* name;
  const char* kind;
  const char* file = "planted_bugs.cu";
};
constexpr const char* kPtx = "planted_ptx.cu";
const Bug kBugs[] = {
    {"missing_syncthreads", "race"},
    {"reused_without_syncthreads", "race"},
    {"missing_syncwarp", "race"},
    {"partial_syncwarp", "race"},
    {"narrow_syncwarp", "race"},
    {"partial_syncwarp_after_reads", "race"},
    {"traps", "trap"},
    {"assumes", "assumption"},
    {"past_the_row", "out-of-bounds"},
    {"past_the_tile", "out-of-bounds"},
    {"dynamic_too_small", "out-of-bounds"},
    {"uninitialised_shared", "uninitialised"},
    {"uninitialised_global", "uninitialised"},
    {"early_return", "divergent-barrier"},
    {"divergent_barriers", "divergent-barrier"},
    {"wrong_mask", "warp-mask"},
    {"lane_outside", "shuffle"},
    {"exited_lanes", "warp-mask"},
    {"misaligned", "misaligned"},
    {"blocks_share_an_address", "race-between-blocks"},
    {"histogram", "race-between-blocks"},
    {"copy_without_wait", "cp.async"},
    {"host_pointer", "host-memory"},
    {"last_block_sums", "race-between-blocks"},
    {"long_copy", "out-of-bounds"},
    {"long_fill", "out-of-bounds"},
    {"long_move", "out-of-bounds"},
    {"structure", "out-of-bounds"},
    {"reads_too_early", "early-launch"},
    {"newest_group", "cp.async", kPtx},
    {"copy_never_awaited", "cp.async", kPtx},
    {"copy_seen_by_others", "race", kPtx},
    {"copy_misaligned", "misaligned", kPtx},
    {"copy_past_the_end", "out-of-bounds", kPtx},
    {"matrix_too_early", "race", kPtx},
    {"matrix_misaligned", "misaligned", kPtx},
    {"matrix_from_global", "ldmatrix", kPtx},
    {"half_a_warp", "warp-mask", kPtx},
};

}  // namespace

TEST_CASE("every planted bug in a kernel is reported, the right kernel is not") {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    simcuda::set_order(simcuda::Order::kRandom, seed);
    for (const Bug& bug : kBugs) {
      INFO(bug.name << ", seed " << seed);
      {
        Fixture right;
        const auto reports = right.run(bug.name, false);
        for (const auto& r : reports) UNSCOPED_INFO(r.kind << ": " << r.text);
        CHECK(reports.empty());
      }
      const int line = line_of(bug.name, bug.file);
      REQUIRE(line > 0);
      Fixture wrong;
      const auto reports = wrong.run(bug.name, true);
      for (const auto& r : reports) UNSCOPED_INFO(r.kind << ": " << r.text);
      CHECK(std::any_of(reports.begin(), reports.end(), [&](const simcuda::Report& r) {
        return r.kind == bug.kind && r.file == bug.file &&
               (r.line == line ||
                (bug.name == std::string("divergent_barriers") && std::abs(r.line - line) <= 3));
      }));
    }
  }
}

TEST_CASE("a missing event between two streams is reported in every order of the work") {
  const auto order =
      GENERATE(simcuda::Order::kLazy, simcuda::Order::kEager, simcuda::Order::kRandom);
  const bool event_used = GENERATE(true, false);
  simcuda::set_order(order, 5);
  Fixture f;
  cudaStream_t second = nullptr;
  cudaEvent_t event = nullptr;
  cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaMemsetAsync(f.buffers.out, 0, 4096, f.stream);
  run_axpy(2.0f, f.buffers.in, f.buffers.out, 1024, f.stream);
  if (event_used) {
    cudaEventRecord(event, f.stream);
    cudaStreamWaitEvent(second, event, 0);
  }
  float* third = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&third), 4096);
  cudaMemsetAsync(third, 0, 4096, second);
  run_axpy(3.0f, f.buffers.out, third, 1024, second);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  const auto reports = simcuda::take_reports();
  if (event_used) {
    CHECK(reports.empty());
    std::vector<float> host(1024);
    cudaMemcpy(host.data(), third, 4096, cudaMemcpyDeviceToHost);
    CHECK(std::all_of(host.begin(), host.end(), [](float v) { return v == 3.0f; }));
  } else {
    REQUIRE(!reports.empty());
    CHECK(reports[0].kind == "stream-race");
    CHECK(reports[0].line == line_of("axpy"));
  }
}

TEST_CASE("a histogram by atomics and a sum by the last block are right") {
  Fixture f;
  CHECK(f.run("histogram", false).empty());
  std::vector<int> bins(16);
  cudaMemcpy(bins.data(), f.buffers.bins, 64, cudaMemcpyDeviceToHost);
  CHECK(std::all_of(bins.begin(), bins.end(), [](int n) { return n == 64; }));
  cudaMemset(f.buffers.bins, 0, 64);
  CHECK(f.run("last_block_sums", false).empty());
  float sum = 0;
  cudaMemcpy(&sum, f.buffers.out + 16, 4, cudaMemcpyDeviceToHost);
  CHECK(sum == 256.0f);
}

TEST_CASE("a kernel that does not end is reported and ended, the next one runs") {
  const std::string name = GENERATE("endless_wait", "endless_loop", "endless_barriers");
  Fixture f;
  CHECK(f.run(name, false).empty());
  simcuda::set_watchdog_seconds(0.05);
  CHECK(run_planted(name, true, f.buffers, f.stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(f.stream) == cudaErrorLaunchTimeout);
  simcuda::set_watchdog_seconds(120);
  const auto reports = simcuda::take_reports();
  REQUIRE(reports.size() == 1);
  INFO(reports[0].text);
  CHECK(reports[0].kind == "watchdog");
  CHECK(reports[0].file == "planted_bugs.cu");
  CHECK(reports[0].line == line_of(name));
  CHECK(f.run("histogram", false).empty());
}

TEST_CASE("a thread of an early launch that exits without waiting is reported once") {
  Fixture f;
  simcuda::reset_statistics();
  CHECK(f.run("ends_too_early", false).empty());
  const auto reports = f.run("ends_too_early", true);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].kind == "early-launch");
  CHECK_THAT(reports[0].text, Catch::Contains("ends_too_early") && Catch::Contains("exits"));
  CHECK(f.run("reads_too_early, not launched early", true).empty());
  CHECK(simcuda::statistics().early_launches == 2);
  CHECK(simcuda::statistics().launches == 3);
}

TEST_CASE("shared memory beyond 48 KiB, static and dynamic, needs to be asked for") {
  Fixture f;
  CHECK(f.run("static_and_dynamic", false).empty());
  const auto reports = f.run("static_and_dynamic", true);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].kind == "launch-limit");
  CHECK_THAT(reports[0].text, Catch::Contains("49168 bytes") && Catch::Contains("49152"));
  REQUIRE(allow_shared_memory(16400) == cudaSuccess);
  CHECK(f.run("static_and_dynamic", true).empty());
}

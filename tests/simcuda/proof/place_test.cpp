// Every finding has a place: what a kernel does, in the kernel; everything else, where the host
// called for it.
#include <functional>

#include "kernels.h"
#include "support.h"

namespace {

int line = 0;  // of the call that is wrong

struct Planted {
  const char* kind;
  const char* file;
  const char* text;  // somewhere in the finding's
  std::function<void(const Stream& s, float* x)> run;
};

void free_and_fill(const Stream& s) {
  float* p = nullptr;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&p), 256) == cudaSuccess);
  REQUIRE(cudaFree(p) == cudaSuccess);
  CHECK(run_fill(p, 1.0f, 64, s) == cudaSuccess);
}

const Planted kPlanted[] = {
    {"use-after-free", "kernels.cu", "256-byte allocation",
     [](const Stream& s, float*) { free_and_fill(s); }},
    {"use-after-free", "place_test.cpp", "256-byte allocation",
     [](const Stream& s, float*) {
       float* p = nullptr;
       REQUIRE(cudaMallocAsync(reinterpret_cast<void**>(&p), 256, s) == cudaSuccess);
       REQUIRE(cudaFreeAsync(p, s) == cudaSuccess);
       line = __LINE__ + 1;
       CHECK(cudaMemsetAsync(p, 0, 256, s) == cudaSuccess);
     }},
    {"stream-race", "place_test.cpp", "nothing orders it after the",
     [](const Stream& s, float* x) {
       float value = 0;
       CHECK(run_fill(x, 1.0f, 64, s) == cudaSuccess);
       line = __LINE__ + 1;
       CHECK(cudaMemcpy(&value, x, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
     }},
    {"stream-race", "kernels.cu", "nothing orders it after the write by operation",
     [](const Stream& s, float* x) {
       const Stream other;  // and no event
       CHECK(run_fill(x, 1.0f, 64, s) == cudaSuccess);
       CHECK(run_fill(x, 2.0f, 64, other) == cudaSuccess);
       CHECK(cudaDeviceSynchronize() == cudaSuccess);
     }},
    {"launch-limit", "kernels.cu", "blocks of (1025, 1, 1) threads",
     [](const Stream& s, float*) { CHECK(run_empty(1025, s) == cudaErrorInvalidConfiguration); }},
    {"launch-limit", "kernels.cu", "49168 bytes of dynamic shared memory: it may have 49152",
     [](const Stream& s, float* x) {
       CHECK(run_cp_async(16, x, x, 12289, s) == cudaErrorInvalidValue);
     }},
    {"out-of-bounds", "place_test.cpp", "256-byte allocation",
     [](const Stream& s, float* x) {
       line = __LINE__ + 1;
       CHECK(cudaMemsetAsync(x, 0, 257, s) == cudaSuccess);
     }},
    {"bad-free", "place_test.cpp", "cudaFree of",
     [](const Stream&, float* x) {
       line = __LINE__ + 1;
       CHECK(cudaFree(x + 1) == cudaErrorInvalidValue);
     }},
    {"policy", "place_test.cpp", "cudaMemsetAsync on the default stream",
     [](const Stream&, float* x) {
       line = __LINE__ + 1;
       CHECK(cudaMemsetAsync(x, 0, 4, nullptr) == cudaErrorInvalidResourceHandle);
     }},
};

}  // namespace

TEST_CASE("findings of the host have the place of the call, whenever the work ran") {
  const auto order =
      GENERATE(simcuda::Order::kLazy, simcuda::Order::kEager, simcuda::Order::kRandom);
  const Settled settled(order);
  const DeviceArray<float> x(std::vector<float>(64, 0.0f));
  const Stream s;
  for (const Planted& planted : kPlanted) {
    INFO(planted.kind << ": " << planted.text);
    line = 0;
    planted.run(s, x);
    CHECK(s.wait() == cudaSuccess);
    (void)cudaGetLastError();
    const auto reports = simcuda::take_reports();
    REQUIRE(reports.size() == 1);
    INFO(reports[0].text);
    const simcuda::Report& found = reports[0];
    CHECK(found.kind == planted.kind);
    CHECK(found.text.find(planted.text) != std::string::npos);
    CHECK(found.line > 0);
    // Of two that race, the later one has the finding; the text has the places of both.
    if (found.kind != "stream-race" || found.file != "kernels.cu") {
      CHECK(found.file == planted.file);
      if (line > 0) CHECK(found.line == line);
    }
    if (line > 0)
      CHECK(found.text.find("place_test.cpp:" + std::to_string(line)) != std::string::npos);
  }
}

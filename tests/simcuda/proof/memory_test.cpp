// Device memory: pools, capacity, copies, lifetime.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "kernels.h"
#include "planted_bugs.h"
#include "support.h"

namespace {

class Pinned {
 public:
  explicit Pinned(std::size_t floats) {
    REQUIRE(cudaHostAlloc(reinterpret_cast<void**>(&p_), floats * 4, 0) == cudaSuccess);
  }
  ~Pinned() { (void)cudaFreeHost(p_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  operator float*() const { return p_; }

 private:
  float* p_ = nullptr;
};

float* allocate_async(std::size_t bytes, cudaStream_t s) {
  void* p = nullptr;
  CHECK(cudaMallocAsync(&p, bytes, s) == cudaSuccess);
  return static_cast<float*>(p);
}

/// What a child process writes to stderr while it does f, and its exit code.
template <class F>
std::pair<int, std::string> in_a_child(F&& f) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 2);
    f();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[256];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, size_t(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

}  // namespace

TEST_CASE("memory of a pool lives from its allocation to its free, in stream order") {
  const auto order =
      GENERATE(simcuda::Order::kLazy, simcuda::Order::kEager, simcuda::Order::kRandom);
  const Settled settled(order);
  const Stream s, other;
  const Event allocated, used;
  const std::size_t before = simcuda::used_bytes(0);
  float* const p = allocate_async(256, s);
  CHECK(simcuda::used_bytes(0) == before + 512);
  CHECK(run_fill(p, 1.0f, 64, s) == cudaSuccess);
  SECTION("right") {
    order_after(other, allocated, s);
    CHECK(run_add(p, p, p, 64, other) == cudaSuccess);
    order_after(s, used, other);
    CHECK(cudaFreeAsync(p, s) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(kinds() == Kinds{});
  }
  SECTION("used by a stream that does not wait for the allocation") {
    CHECK(run_fill(p, 2.0f, 64, other) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    const Kinds found = kinds();
    CHECK(std::count(found.begin(), found.end(), "stream-race") > 0);
    CHECK(cudaFreeAsync(p, s) == cudaSuccess);
  }
  SECTION("used after the free") {
    CHECK(cudaFreeAsync(p, s) == cudaSuccess);
    CHECK(run_fill(p, 2.0f, 64, s) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(kinds() == Kinds{"use-after-free"});
  }
  SECTION("freed while another stream may still use it") {
    order_after(other, allocated, s);
    CHECK(run_add(p, p, p, 64, other) == cudaSuccess);
    CHECK(cudaFreeAsync(p, s) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    const Kinds found = kinds();
    REQUIRE(!found.empty());
    CHECK((found[0] == "stream-race" || found[0] == "use-after-free"));
  }
  SECTION("freed twice") {
    CHECK(cudaFreeAsync(p, s) == cudaSuccess);
    CHECK(cudaFreeAsync(p, s) == cudaErrorInvalidValue);
    CHECK(kinds() == Kinds{"bad-free"});
  }
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(simcuda::used_bytes(0) == before);
  simcuda::take_reports();
}

TEST_CASE("a device has the capacity it is given, out of memory is an error and nothing more") {
  const Settled settled;
  const std::size_t used = simcuda::used_bytes(0);
  simcuda::set_capacity(0, used + 4096);
  void *p = nullptr, *q = nullptr;
  CHECK(cudaMalloc(&p, 4097) == cudaErrorMemoryAllocation);
  CHECK(p == nullptr);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaMalloc(&p, 4096) == cudaSuccess);
  const Stream s;
  CHECK(cudaMallocAsync(&q, 1, s) == cudaErrorMemoryAllocation);
  std::size_t free = 1, total = 0;
  CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
  CHECK(free == 0);
  CHECK(total == used + 4096);
  CHECK(cudaFree(p) == cudaSuccess);
  CHECK(cudaMallocAsync(&q, 1, s) == cudaSuccess);
  CHECK(cudaFreeAsync(q, s) == cudaSuccess);
  CHECK(s.wait() == cudaSuccess);
  simcuda::set_capacity(0, std::size_t{1} << 30);
  CHECK(kinds() == Kinds{});
}

TEST_CASE("what a stream frees is its own at once, and another's when it has been freed") {
  const Settled settled(simcuda::Order::kLazy);
  const std::size_t used = simcuda::used_bytes(0);
  simcuda::set_capacity(0, used + 4096);
  const Stream s, other;
  void *p = nullptr, *q = nullptr;
  CHECK(cudaMallocAsync(&p, 4096, s) == cudaSuccess);
  CHECK(cudaFreeAsync(p, s) == cudaSuccess);
  CHECK(cudaMallocAsync(&q, 4096, other) == cudaErrorMemoryAllocation);
  CHECK(cudaMallocAsync(&q, 4096, s) == cudaSuccess);
  CHECK(cudaFreeAsync(q, s) == cudaSuccess);
  CHECK(cudaMallocAsync(&q, 1, other) == cudaErrorMemoryAllocation);
  CHECK(s.wait() == cudaSuccess);
  CHECK(cudaMallocAsync(&q, 4096, other) == cudaSuccess);
  CHECK(cudaFreeAsync(q, other) == cudaSuccess);
  CHECK(other.wait() == cudaSuccess);
  (void)cudaGetLastError();
  simcuda::set_capacity(0, std::size_t{1} << 30);
  CHECK(kinds() == Kinds{});
}

TEST_CASE("freed memory is never given out again, its use is reported") {
  const Settled settled;
  const Stream s;
  float* old = nullptr;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&old), 256) == cudaSuccess);
  CHECK(cudaFree(old) == cudaSuccess);
  const DeviceArray<float> fresh(64);
  CHECK(fresh.get() != old);
  SECTION("by a kernel") { CHECK(run_fill(old, 1.0f, 64, s) == cudaSuccess); }
  SECTION("by a copy") {
    CHECK(cudaMemcpyAsync(old, fresh, 256, cudaMemcpyDeviceToDevice, s) == cudaSuccess);
  }
  SECTION("by a fill") { CHECK(cudaMemsetAsync(old, 0, 256, s) == cudaSuccess); }
  CHECK(s.wait() == cudaSuccess);
  const auto reports = simcuda::take_reports();
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].kind == "use-after-free");
  CHECK(reports[0].text.find("(freed)") != std::string::npos);
  CHECK(cudaFree(old) == cudaErrorInvalidValue);
  CHECK(cudaFree(fresh.get() + 1) == cudaErrorInvalidValue);
  CHECK(kinds() == Kinds{"bad-free", "bad-free"});
}

TEST_CASE("copies: bounds, directions, rectangles") {
  const Settled settled;
  const Stream s;
  std::vector<float> rows(60);
  for (std::size_t i = 0; i < 60; ++i) rows[i] = float(i);
  const DeviceArray<float> x(rows), y(60);
  CHECK(cudaMemsetAsync(y, 0, 240, s) == cudaSuccess);
  // Columns 2 to 4 of 6 rows of 10 become rows of 5 (all but one of them) with a gap.
  CHECK(cudaMemcpy2DAsync(y.get() + 1, 20, x.get() + 2, 40, 12, 6, cudaMemcpyDeviceToDevice, s) ==
        cudaSuccess);
  CHECK(s.wait() == cudaSuccess);
  const std::vector<float> read = y.read();
  for (std::size_t i = 0; i < 60; ++i) {
    const std::size_t row = i / 5, column = i % 5;
    const bool copied = row < 6 && column >= 1 && column < 4;
    CHECK(read[i] == (copied ? float(row * 10 + column + 1) : 0.0f));
  }
  CHECK(cudaMemcpy2DAsync(y, 8, x, 40, 12, 6, cudaMemcpyDeviceToDevice, s) ==
        cudaErrorInvalidValue);  // rows that overlap
  CHECK(kinds() == Kinds{});
  CHECK(cudaMemcpyAsync(y, x.get() + 1, 240, cudaMemcpyDeviceToDevice, s) == cudaSuccess);
  CHECK(s.wait() == cudaSuccess);
  CHECK(kinds() == Kinds{"out-of-bounds"});
  CHECK(cudaMemcpyAsync(y, x, 240, cudaMemcpyHostToDevice, s) == cudaErrorInvalidValue);
  CHECK(kinds() == Kinds{"policy"});
}

TEST_CASE("copies of pageable memory are not asynchronous, those of pinned memory are") {
  const Settled settled(simcuda::Order::kLazy);
  const Stream s;
  const DeviceArray<float> x(4);
  const Pinned pinned(4);
  std::vector<float> pageable(4, 1.0f);
  simcuda::reset_statistics();
  CHECK(cudaMemcpyAsync(x, pageable.data(), 16, cudaMemcpyHostToDevice, s) == cudaSuccess);
  std::fill(pageable.begin(), pageable.end(), 2.0f);  // too late to matter
  CHECK(cudaMemcpyAsync(pinned, x, 16, cudaMemcpyDeviceToHost, s) == cudaSuccess);
  CHECK(simcuda::statistics().pageable_copies == 1);
  CHECK(simcuda::statistics().host_synchronizations == 0);
  CHECK(cudaMemcpyAsync(pageable.data(), x, 16, cudaMemcpyDeviceToHost, s) == cudaSuccess);
  CHECK(simcuda::statistics().pageable_copies == 2);
  CHECK(simcuda::statistics().host_synchronizations == 1);
  CHECK(pageable == std::vector<float>(4, 1.0f));  // there without a wait of ours
  CHECK(pinned[0] == 1.0f);
  // Pinned memory is read when the copy runs: this is the bug that pageable memory hides.
  std::fill_n(static_cast<float*>(pinned), 4, 5.0f);
  CHECK(cudaMemcpyAsync(x, pinned, 16, cudaMemcpyHostToDevice, s) == cudaSuccess);
  std::fill_n(static_cast<float*>(pinned), 4, 6.0f);
  CHECK(s.wait() == cudaSuccess);
  CHECK(x.read() == std::vector<float>(4, 6.0f));
  CHECK(kinds() == Kinds{});
}

TEST_CASE("the host's own copy has to come after the work it reads") {
  const auto order =
      GENERATE(simcuda::Order::kLazy, simcuda::Order::kEager, simcuda::Order::kRandom);
  const bool wrong = GENERATE(false, true);
  const Settled settled(order);
  const Stream s;
  const DeviceArray<float> x(std::vector<float>(64, 0.0f));
  CHECK(run_fill(x, 1.0f, 64, s) == cudaSuccess);
  if (!wrong) CHECK(s.wait() == cudaSuccess);
  const std::vector<float> read = x.read();
  CHECK(s.wait() == cudaSuccess);
  CHECK(kinds() == (wrong ? Kinds{"stream-race"} : Kinds{}));
  if (!wrong) CHECK(read == std::vector<float>(64, 1.0f));
}

TEST_CASE("host code that touches device memory ends with the allocation's name") {
  const Settled settled;
  const DeviceArray<float> x(64);
  const auto [code, text] = in_a_child([&] { *static_cast<volatile float*>(x.get() + 3) = 1.0f; });
  CHECK(code == 67);
  CHECK(text.find("host code touches device 0, 256-byte allocation") != std::string::npos);
  CHECK(text.find("offset 12 at memory_test.cpp:") != std::string::npos);
}

TEST_CASE("findings that no test takes make the process fail") {
  const Settled settled;
  const auto [code, text] = in_a_child([&] {
    const DeviceArray<float> x(64);
    (void)run_fill(x, 1.0f, 64, nullptr);
    std::exit(0);
  });
  CHECK(code == 66);
  CHECK(text.find("1 findings that no test expected") != std::string::npos);
}

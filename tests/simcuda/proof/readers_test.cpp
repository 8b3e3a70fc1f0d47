// Several readers that nothing orders among each other, then a writer: it has to come after all.
#include <algorithm>

#include "kernels.h"
#include "support.h"

namespace {

struct Readers {
  Stream a, b, c, writer;
  Event a_done, b_done, c_done;
  DeviceArray<float> x{std::vector<float>(64, 1.0f)}, out{3 * 64};

  // Kernels and a copy.
  void read() {
    CHECK(run_add(out, x, x, 64, a) == cudaSuccess);
    CHECK(cudaMemcpyAsync(out + 64, x, 256, cudaMemcpyDeviceToDevice, b) == cudaSuccess);
    CHECK(run_add(out + 128, x, x, 64, c) == cudaSuccess);
  }
  void order(bool after_a, bool after_b, bool after_c) {
    if (after_a) order_after(writer, a_done, a);
    if (after_b) order_after(writer, b_done, b);
    if (after_c) order_after(writer, c_done, c);
  }
};

void wait_for_all() { CHECK(cudaDeviceSynchronize() == cudaSuccess); }

}  // namespace

TEST_CASE("a writer that misses one of several readers is reported, in every order of the work") {
  const auto seed = GENERATE(range(1u, 9u));
  const Settled settled(simcuda::Order::kRandom, seed);
  const int missed = GENERATE(-1, 0, 1, 2);
  Readers r;
  r.read();
  r.order(missed != 0, missed != 1, missed != 2);
  const int writer = GENERATE(0, 1, 2);
  if (writer == 0)
    CHECK(run_fill(r.x, 2.0f, 64, r.writer) == cudaSuccess);
  else if (writer == 1)
    CHECK(cudaMemsetAsync(r.x + 8, 0, 64, r.writer) == cudaSuccess);
  else
    CHECK(run_fill(r.x + 63, 2.0f, 1, r.writer) == cudaSuccess);
  wait_for_all();
  CAPTURE(seed, missed, writer);
  const Kinds found = kinds();
  CHECK(found.empty() == (missed == -1));
  CHECK(std::count(found.begin(), found.end(), "stream-race") == std::ptrdiff_t(found.size()));
}

TEST_CASE("readers of other bytes do not count") {
  const auto seed = GENERATE(range(1u, 5u));
  const Settled settled(simcuda::Order::kRandom, seed);
  const int from = GENERATE(0, 31, 32, 33);
  Readers r;
  CHECK(run_add(r.out, r.x, r.x, 33, r.a) == cudaSuccess);
  CHECK(run_add(r.out + 64, r.x, r.x, 64, r.b) == cudaSuccess);
  r.order(false, true, false);
  CHECK(run_fill(r.x + from, 2.0f, 64 - from, r.writer) == cudaSuccess);
  wait_for_all();
  CHECK(kinds().empty() == (from == 33));
}

TEST_CASE("memory is freed after all of its readers") {
  const auto seed = GENERATE(range(1u, 9u));
  const Settled settled(simcuda::Order::kRandom, seed);
  const bool wrong = GENERATE(false, true);
  Readers r;
  float* p = nullptr;
  REQUIRE(cudaMallocAsync(reinterpret_cast<void**>(&p), 256, r.writer) == cudaSuccess);
  CHECK(run_fill(p, 1.0f, 64, r.writer) == cudaSuccess);
  REQUIRE(r.writer.wait() == cudaSuccess);
  CHECK(run_add(r.out, p, p, 64, r.a) == cudaSuccess);
  CHECK(run_add(r.out + 64, p, p, 64, r.b) == cudaSuccess);
  r.order(true, !wrong, false);
  CHECK(cudaFreeAsync(p, r.writer) == cudaSuccess);
  wait_for_all();
  const Kinds found = kinds();
  CHECK(found.empty() == !wrong);
  if (wrong) CHECK((found[0] == "stream-race" || found[0] == "use-after-free"));
}

TEST_CASE("readers of earlier rounds are forgotten when the host has waited for them") {
  const Settled settled;
  Readers r;
  for (int round = 0; round < 30; ++round) {
    r.read();
    r.order(true, true, true);
    CHECK(run_fill(r.x, float(round), 64, r.writer) == cudaSuccess);
    wait_for_all();
  }
  CHECK(kinds() == Kinds{});
}

// A logical step on the simulated CUDA device: it waits for nothing, and real refusals of the
// device, of the host's pinned memory and of cuBLASLt are survived.
#include <accrue/config.h>
#if ACCRUE_CUDA_SIM
  #include <simcuda/simcuda.h>
  #include <accrue/core/cuda/pinned.h>
  #include <accrue/kernels/cuda/gemm.h>
  #include "tests/support/catch.h"
  #include "tests/support/small_model.h"

using namespace accrue;
using namespace accrue::test;

namespace {
using Sizes = std::vector<std::int64_t>;
constexpr std::size_t kCapacity = std::size_t{1} << 30;

// No failures to come and the usual capacity, afterwards.
struct Settled {
  ~Settled() {
    simcuda::clear_failures();
    simcuda::set_capacity(0, kCapacity);
  }
};
const RaggedBatch& batch() {
  static const RaggedBatch b(5);
  return b;
}
}  // namespace

TEST_CASE("cuda: a logical step never makes the host wait for the device", "[optim][step][cuda]") {
  const DeviceScope on(Device::cuda());
  SmallModel m(DType::kBF16);
  optim::LogicalStep step(*m.adam, m.set, {.micro = 2});
  step.run(5, m.of(batch()));
  simcuda::reset_statistics();
  step.run(5, m.of(batch(), 1));
  const optim::BatchReport report = step.run(5, m.of(batch(), 2));
  const simcuda::Statistics s = simcuda::statistics();
  CHECK(s.launches > 60);
  CHECK(s.host_synchronizations == 0);
  CHECK(s.pageable_copies == 0);
  CHECK(report.read().step == 3);
}

TEST_CASE("B57: a cudaMalloc of a step that is refused once is had again, the bits are the same",
          "[optim][step][cuda][memory]") {
  const DeviceScope on(Device::cuda());
  const Settled settled;
  SmallModel m;
  const optim::StepOptions options{.micro = 3};
  simcuda::reset_statistics();
  optim::LogicalStep(*m.adam, m.set, options).run(5, m.of(batch()));
  const auto calls = static_cast<int>(simcuda::statistics().allocations);
  REQUIRE(calls > 45);
  const auto want = m.bits();
  backend(Device::cuda()).system_reclaim();
  const std::size_t used = simcuda::used_bytes(0);
  for (int n = 1; n <= calls; n += 4) {
    m.restore();
    simcuda::fail_next(simcuda::Call::kMalloc, n, cudaErrorMemoryAllocation);
    simcuda::reset_statistics();
    optim::LogicalStep(*m.adam, m.set, options).run(5, m.of(batch()));
    INFO("cudaMalloc " << n);
    CHECK(simcuda::statistics().host_synchronizations == 1);  // to have the pool's memory back
    CHECK(m.bits() == want);
  }
  backend(Device::cuda()).system_reclaim();
  CHECK(simcuda::used_bytes(0) == used);
}

TEST_CASE("B57: a device that is too small for the batch shrinks the micro-batch",
          "[optim][step][cuda][memory]") {
  const DeviceScope on(Device::cuda());
  const Settled settled;
  SmallModel m;
  const RaggedBatch large(12);
  optim::LogicalStep(*m.adam, m.set).run(12, m.of(large));
  const std::vector<float> want = m.weights();
  const auto peak_of = [&](std::int64_t micro) {
    m.restore();
    backend(Device::cuda()).system_reclaim();
    simcuda::reset_statistics();
    optim::LogicalStep(*m.adam, m.set, {.micro = micro}).run(12, m.of(large));
    return simcuda::peak_bytes(0);
  };
  const std::size_t three = peak_of(3);
  REQUIRE(peak_of(12) > three);
  m.restore();
  backend(Device::cuda()).system_reclaim();
  simcuda::set_capacity(0, three);
  optim::LogicalStep step(*m.adam, m.set);
  const optim::BatchReport report = step.run(12, m.of(large));
  CHECK(report.retries > 0);
  CHECK(step.micro() >= 3);
  CHECK(step.micro() < 12);
  CHECK(simcuda::peak_bytes(0) >= three / 2);
  CHECK(apart(m.weights(), want) < 1e-6);
}

TEST_CASE("B57: cuBLASLt and pinned memory run out, and the step is the same",
          "[optim][step][cuda][memory]") {
  const DeviceScope on(Device::cuda());
  const Settled settled;
  SmallModel m;
  optim::LogicalStep step(*m.adam, m.set, {.micro = 3});
  step.run(5, m.of(batch()));
  const auto want = m.bits();
  for (const int n : {1, 2, 3, 7, 12, 20}) {
    m.restore();
    kernels::cuda::clear_gemm_cache(Device::cuda());  // algorithms are asked for again
    simcuda::fail_next(simcuda::Call::kLibrary, n, cudaErrorMemoryAllocation);
    const optim::BatchReport report = step.run(5, m.of(batch()));
    INFO("call " << n);
    CHECK(report.retries == 1);
    CHECK(m.bits() == want);
  }
  m.restore();
  simcuda::fail_next(simcuda::Call::kHostMalloc, 2, cudaErrorMemoryAllocation);
  const optim::MicroLoss loss = m.of(batch());
  const optim::BatchReport report = step.run(5, [&](std::int64_t first, std::int64_t count) {
    const cuda::PinnedBuffer staging(4096);
    return loss(first, count);
  });
  CHECK(report.retries == 1);
  CHECK(m.bits() == want);
}

TEST_CASE("B57: a kernel that cannot be loaded for want of memory is tried again",
          "[optim][step][cuda][memory]") {
  const DeviceScope on(Device::cuda());
  const Settled settled;
  SmallModel m;
  optim::LogicalStep step(*m.adam, m.set, {.micro = 3});
  step.run(5, m.of(batch()));
  const auto want = m.bits();
  for (const int n : {1, 5, 13, 22, 31}) {
    m.restore();
    simcuda::fail_next(simcuda::Call::kLaunch, n, cudaErrorMemoryAllocation);
    const optim::BatchReport report = step.run(5, m.of(batch()));
    INFO("launch " << n);
    CHECK(report.retries == 1);
    CHECK(m.bits() == want);
  }
}
#endif

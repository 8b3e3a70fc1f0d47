#if __has_include(<catch2/catch_all.hpp>)
  #include <catch2/catch_all.hpp>
#else
  #define CATCH_CONFIG_RUNNER
  #include <catch2/catch.hpp>
#endif
#include <cstdio>
#include <cstdlib>
#include <accrue/config.h>
#include <accrue/core/allocator.h>
#include <accrue/core/backend.h>
#if ACCRUE_CUDA_SIM
  #include <accrue/kernels/gemm.h>
  #include <simcuda/simcuda.h>

namespace {
// What the simulated device has to complain about fails the test in which it happened.
struct Reports : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    for (const simcuda::Report& r : simcuda::take_reports()) {
      std::fprintf(stderr, "simulated CUDA, during '%s': %s: %s\n", stats.testInfo.name.c_str(),
                   r.kind.c_str(), r.text.c_str());
      ++count;
    }
    TestEventListenerBase::testCaseEnded(stats);
  }
  static inline int count = 0;
};
CATCH_REGISTER_LISTENER(Reports)
}  // namespace
#endif

/// ACCRUE_TEST_DEVICE names the default device of all tests: cpu, or cuda. Where it cannot be used,
/// nothing runs and the exit code is 77: skipped.
int main(int argc, char** argv) {
#if ACCRUE_CUDA_SIM
  if (!std::getenv("SIM_DEVICES")) simcuda::set_devices(2);
#endif
  const char* name = std::getenv("ACCRUE_TEST_DEVICE");
  const accrue::Device device = accrue::Device::parse(name ? name : "cpu");
  if (device.is_cuda() && accrue::device_count(accrue::DeviceType::kCuda) == 0) {
    std::printf("skipped: %s\n", accrue::why_no_cuda().c_str());
    return 77;
  }
  const accrue::DeviceScope everywhere(device);
  // Fresh memory is NaN in every test: nobody may rely on its content, and beta 0 must not read it.
  accrue::Allocator::of(accrue::Device::cpu()).set_poison(true);
#if ACCRUE_CUDA_SIM || defined(__SANITIZE_ADDRESS__)
  // Whoever watches memory must see every tensor at its size, and its end.
  accrue::Allocator::of(accrue::Device::cpu()).set_reuse(false);
#endif
#if ACCRUE_CUDA_SIM
  // The device poisons by itself, and knows what was never written.
  for (int i = 0; i < accrue::device_count(accrue::DeviceType::kCuda); ++i)
    accrue::Allocator::of(accrue::Device::cuda(i)).set_reuse(false);
  // Filling the 32 MiB of every product took most of the time.
  accrue::kernels::set_gemm_workspace_bytes(std::int64_t{1} << 20);
#endif
#if !ACCRUE_CUDA_SIM
  accrue::Allocator::of(device).set_poison(true);
#endif
  int result = Catch::Session().run(argc, argv);  // the number of failed assertions
#if ACCRUE_CUDA_SIM
  result += Reports::count;
#endif
  return result == 0 ? 0 : 1;
}

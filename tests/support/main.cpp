#if __has_include(<catch2/catch_all.hpp>)
  #include <catch2/catch_all.hpp>
#else
  #define CATCH_CONFIG_RUNNER
  #include <catch2/catch.hpp>
#endif
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <accrue/config.h>
#include <accrue/core/allocator.h>
#include <accrue/core/backend.h>
#include "tests/support/devices.h"
#if ACCRUE_CUDA_SIM
  #include <accrue/core/cuda/fault.h>
  #include <accrue/kernels/gemm.h>
  #include <simcuda/simcuda.h>
#endif

namespace {
struct Ended : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ++count;
    TestEventListenerBase::testCaseEnded(stats);
  }
  static inline int count = 0;
};
CATCH_REGISTER_LISTENER(Ended)
}  // namespace

#if ACCRUE_CUDA_SIM
namespace {
// What the simulated device has to complain about fails the test in which it happened.
struct Reports : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    simcuda::drain();  // what the test left in the streams is its own
    for (const simcuda::Report& r : simcuda::take_reports()) {
      std::fprintf(stderr, "simulated CUDA, during '%s': %s: %s\n", stats.testInfo.name.c_str(),
                   r.kind.c_str(), r.text.c_str());
      ++count;
    }
    for (int i = 0; i < accrue::device_count(accrue::DeviceType::kCuda); ++i) try {
        accrue::cuda::check_fault(accrue::Device::cuda(i));
      } catch (const accrue::Error& e) {
        std::fprintf(stderr, "during '%s' nobody looked at: %s\n", stats.testInfo.name.c_str(),
                     e.what());
        ++count;
      }
    TestEventListenerBase::testCaseEnded(stats);
  }
  static inline int count = 0;
};
CATCH_REGISTER_LISTENER(Reports)
}  // namespace
#endif

namespace {
constexpr int kSkipped = 77;  // what CTest takes for it

bool memory_is_watched() {
#if ACCRUE_CUDA_SIM || defined(__SANITIZE_ADDRESS__)
  return true;
#else
  const char* asked = std::getenv("ACCRUE_TEST_WATCHED");
  return asked && std::string_view(asked) == "1";
#endif
}
}  // namespace

/// ACCRUE_TEST_DEVICE names the default device of all tests: cpu, or cuda. Where it cannot be used,
/// nothing runs and the exit code is 77: skipped. So it is when every test that ran has said that
/// it was. ACCRUE_TEST_WATCHED=1 is for tools that watch the memory of a device
/// (compute-sanitizer).
int main(int argc, char** argv) {
#if ACCRUE_CUDA_SIM
  if (!std::getenv("SIM_DEVICES")) simcuda::set_devices(4);
#endif
  const char* name = std::getenv("ACCRUE_TEST_DEVICE");
  const accrue::Device device = accrue::Device::parse(name ? name : "cpu");
  if (device.is_cuda() && !accrue::why_no_cuda().empty()) {
    std::printf("skipped: %s\n", accrue::why_no_cuda().c_str());
    return kSkipped;
  }
  const accrue::DeviceScope everywhere(device);
  // Fresh memory is NaN in every test: nobody may rely on its content, and beta 0 must not read it.
  accrue::Allocator::of(accrue::Device::cpu()).set_poison(true);
  // Whoever watches memory must see every tensor at its size, and its end. A device that is watched
  // is not poisoned: that would be a write, and those who watch know what was never written.
  if (memory_is_watched()) {
    accrue::Allocator::of(accrue::Device::cpu()).set_reuse(false);
    accrue::Allocator::of(device).set_reuse(false);
  } else {
    accrue::Allocator::of(device).set_poison(true);
  }
#if ACCRUE_CUDA_SIM
  for (int i = 0; i < accrue::device_count(accrue::DeviceType::kCuda); ++i)
    accrue::Allocator::of(accrue::Device::cuda(i)).set_reuse(false);
  // Filling the 32 MiB of every product took most of the time.
  accrue::kernels::set_gemm_workspace_bytes(std::int64_t{1} << 20);
#endif
  int result = Catch::Session().run(argc, argv);  // the number of failed assertions
#if ACCRUE_CUDA_SIM
  result += Reports::count;
#endif
  if (result != 0) return 1;
  return Ended::count > 0 && accrue::test::skipped_tests == Ended::count ? kSkipped : 0;
}

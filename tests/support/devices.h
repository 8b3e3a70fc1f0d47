#pragma once
#include <string>
#include <vector>
#include <accrue/core/allocator.h>
#include <accrue/core/backend.h>
#include "tests/support/catch.h"

namespace accrue::test {
/// How many tests of this process had nothing to run on. When all had, its exit code is 77, which
/// CTest shows as skipped.
inline int skipped_tests = 0;

/// Says that a test is left out and why: `if (no_file) { skip_test("..."); return; }`
inline void skip_test(const std::string& why) {
  ++skipped_tests;
  WARN("skipped: " << why);
}
/// At the beginning of a test that needs CUDA devices: `if (skipped_without_cuda()) return;`
inline bool skipped_without_cuda(int devices = 1) {
  const int there = device_count(DeviceType::kCuda);
  if (there >= devices) return false;
  skip_test(there == 0 ? why_no_cuda()
                       : std::to_string(devices) + " CUDA devices are needed, here is " +
                             std::to_string(there));
  return true;
}

/// The devices a test runs on: the default one (see main.cpp), for tests that name a device.
inline std::vector<Device> devices() { return {default_device()}; }

/// While it lives, the device's allocator keeps and reuses blocks, or does not. (Where memory is
/// watched, the test program switches it off.)
class ReuseScope {
 public:
  explicit ReuseScope(Device device, bool on = true)
      : memory_(Allocator::of(device)), before_(memory_.reuse()) {
    memory_.set_reuse(on);
  }
  ~ReuseScope() { memory_.set_reuse(before_); }
  ReuseScope(const ReuseScope&) = delete;
  ReuseScope& operator=(const ReuseScope&) = delete;

 private:
  Allocator& memory_;
  bool before_;
};
}  // namespace accrue::test

#pragma once
#include <vector>
#include <accrue/core/allocator.h>

namespace accrue::test {
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

#pragma once
#include <vector>
#include <accrue/core/types.h>

namespace accrue::test {
/// The devices a test runs on: the default one (see main.cpp), for tests that name a device.
inline std::vector<Device> devices() { return {default_device()}; }
}  // namespace accrue::test

#pragma once
// The CUDA devices behind core/backend.h.
#include <string>
#include <accrue/core/backend.h>

namespace accrue::cuda {

struct Availability {
  int devices = 0;
  std::string reason;  // empty when there are devices
};
/// Asks the driver once; never throws.
const Availability& availability();

/// What the driver's answers mean, in words: the versions as CUDA numbers them (13000: 13.0; 0: no
/// driver), the code and the count of cudaGetDeviceCount.
Availability judge(int driver_version, int runtime_version, int count_code, int count);

/// Throws kUnsupported with availability().reason, or kInvalidArgument for an ordinal beyond the
/// last.
Backend& backend_of(Device device);
}  // namespace accrue::cuda

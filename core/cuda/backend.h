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

/// Why the device cannot be used: availability().reason, or that it has no such number, does not
/// open, or that this build has no kernels for its architecture. "" where it can. Never throws; the
/// first time it opens the device.
std::string why_unusable(Device device);
/// What a kernel of this build is there: the code of the CUDA runtime, and if that is 0 the
/// architecture that it was written for (90; 80 where a GPU of any kind has that from PTX).
struct KernelProbe {
  int code = 0, architecture = 0;
};
KernelProbe probe_kernels(Device device);

/// What the driver's answers mean, in words: the versions as CUDA numbers them (13000: 13.0; 0: no
/// driver), the code and the count of cudaGetDeviceCount.
Availability judge(int driver_version, int runtime_version, int count_code, int count);

/// Throws kUnsupported with the reason why the device is unusable, or kInvalidArgument for an
/// ordinal beyond the last.
Backend& backend_of(Device device);
}  // namespace accrue::cuda

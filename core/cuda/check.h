#pragma once
// Every CUDA return code is looked at: throwing where the caller can know, quietly in destructors.
// No CUDA header here, so that any file of a CUDA path may include it.
#include <accrue/core/error.h>
#include <accrue/core/types.h>

namespace accrue::cuda {

/// Throws Error(kCuda) with the code's name, its text, the call and where it stands.
/// cudaErrorMemoryAllocation throws OutOfMemory.
[[noreturn]] void fail(int code, const char* call, const char* file, int line);
/// Logs a warning instead: for destructors and noexcept functions.
void warn(int code, const char* call, const char* file, int line) noexcept;
/// The same for a code of a library that has codes of its own (cuBLAS).
void warn_status(int code) noexcept;

/// Makes the device the calling thread's current one.
void use_device(Device device);
/// Throws where the stream is being captured into a graph, which `what` cannot be part of.
void refuse_in_capture(Stream stream, const char* what);
/// The major number of the device's compute capability: 9 for 9.0.
int compute_capability_major(Device device);
/// Whether programmatic_launch() is on and this build's kernels wait on the device: sm_90 or newer.
bool can_launch_early(Device device);
}  // namespace accrue::cuda

#define ACCRUE_CUDA_CHECK(call)                                             \
  do {                                                                      \
    if (const int accrue_code_ = static_cast<int>(call); accrue_code_ != 0) \
      ::accrue::cuda::fail(accrue_code_, #call, __FILE__, __LINE__);        \
  } while (false)
#define ACCRUE_CUDA_CHECK_QUIET(call)                                       \
  do {                                                                      \
    if (const int accrue_code_ = static_cast<int>(call); accrue_code_ != 0) \
      ::accrue::cuda::warn(accrue_code_, #call, __FILE__, __LINE__);        \
  } while (false)

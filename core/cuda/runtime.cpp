#include <cuda_runtime_api.h>
#include <array>
#include <atomic>
#include <accrue/core/cuda/backend.h>
#include <accrue/core/cuda/check.h>
#include <accrue/core/log.h>
#include <accrue/core/programmatic_launch.h>

namespace accrue::cuda {
namespace {
std::string describe(int code, const char* call, const char* file, int line) {
  const auto error = static_cast<cudaError_t>(code);
  return accrue::detail::concat(cudaGetErrorName(error), " (", cudaGetErrorString(error), ") from ",
                                call, " at ", file, ":", line);
}
std::string version(int v) { return accrue::detail::concat(v / 1000, ".", v % 1000 / 10); }

std::string architecture_of_current_device() {
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
    return "this device";
  return accrue::detail::concat("sm_", major, minor);
}
// What the kernels were written for, by device; 0: not asked yet.
std::array<std::atomic<int>, 128> architectures{};

bool is_no_kernel(int code) {
  return code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction;
}
std::string no_kernel() {
  return accrue::detail::concat("this build has no kernel for the architecture of the GPU, ",
                                architecture_of_current_device(),
                                "; configure with CMAKE_CUDA_ARCHITECTURES naming it");
}
}  // namespace

void fail(int code, const char* call, const char* file, int line) {
  // Errors that do not stick must not come back from an unrelated call.
  (void)cudaGetLastError();
  const std::string what = describe(code, call, file, line);
  if (code == cudaErrorMemoryAllocation) throw OutOfMemory("CUDA: " + what, 0, 0, 0, {});
  if (is_no_kernel(code))
    accrue::detail::fail(ErrorCode::kUnsupported,
                         accrue::detail::concat("CUDA: ", no_kernel(), ". ", what));
  accrue::detail::fail(ErrorCode::kCuda, "CUDA: " + what);
}
void warn(int code, const char* call, const char* file, int line) noexcept {
  (void)cudaGetLastError();
  try {
    log(LogLevel::kWarning, "CUDA: " + describe(code, call, file, line));
  } catch (...) {}
}
void warn_status(int code) noexcept {
  try {
    log(LogLevel::kWarning,
        accrue::detail::concat("CUDA: a library could not destroy a handle (its status ", code,
                               ")"));
  } catch (...) {}
}

// Not remembered: the program around us may set the device too.
void use_device(Device device) { ACCRUE_CUDA_CHECK(cudaSetDevice(device.index)); }

int compute_capability_major(Device device) {
  int major = 0;
  ACCRUE_CUDA_CHECK(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
  return major;
}
// Not the device decides: it may run kernels that it made from the PTX of an older one, and those
// do not wait.
bool can_launch_early(Device device) {
  return programmatic_launch() && architectures[static_cast<std::size_t>(device.index)] >= 90;
}

void refuse_in_capture(Stream stream, const char* what) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  ACCRUE_CUDA_CHECK(cudaStreamIsCapturing(reinterpret_cast<cudaStream_t>(stream.native), &status));
  ACCRUE_CHECK(status == cudaStreamCaptureStatusNone, "CUDA: ", what,
               " cannot be captured into a graph; do it before the capture (docs/cuda.md)");
}

Availability judge(int driver_version, int runtime_version, int count_code, int count) {
  using accrue::detail::concat;
  if (driver_version == 0) return {0, "there is no NVIDIA driver on this machine"};
  if (count_code == cudaErrorInsufficientDriver)
    return {0, concat("the NVIDIA driver is too old: it knows CUDA ", version(driver_version),
                      ", this build needs ", version(runtime_version), "; update the driver")};
  if (count_code == cudaErrorNoDevice || (count_code == cudaSuccess && count == 0))
    return {0, "no NVIDIA GPU is visible (is CUDA_VISIBLE_DEVICES set?)"};
  if (count_code != cudaSuccess)
    return {0, concat("the CUDA runtime did not start: ",
                      cudaGetErrorString(static_cast<cudaError_t>(count_code)))};
  return {count, ""};
}

const Availability& availability() {
  static const Availability found = [] {
    int driver = 0, runtime = 0, count = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    (void)cudaRuntimeGetVersion(&runtime);
    const int code = driver == 0 ? 0 : static_cast<int>(cudaGetDeviceCount(&count));
    (void)cudaGetLastError();
    return judge(driver, runtime, code, count);
  }();
  return found;
}

std::string why_unusable(Device device) {
  using accrue::detail::concat;
  const Availability& found = availability();
  if (found.devices == 0) return found.reason;
  if (device.index < 0 || device.index >= found.devices)
    return concat("this machine has ", found.devices, " CUDA device",
                  found.devices == 1 ? "" : "s");
  std::atomic<int>& known = architectures[static_cast<std::size_t>(device.index)];
  if (known != 0) return {};
  const KernelProbe probe = probe_kernels(device);
  (void)cudaGetLastError();
  if (is_no_kernel(probe.code)) return no_kernel();
  if (probe.code != cudaSuccess)
    return concat("the GPU does not open: ",
                  cudaGetErrorString(static_cast<cudaError_t>(probe.code)));
  known = probe.architecture;
  return {};
}
}  // namespace accrue::cuda

#include <accrue/core/cuda/backend.h>
#include <accrue/core/cuda/device.cuh>

namespace accrue::cuda {
namespace {
__global__ void __launch_bounds__(32) probe_kernel() {}
}  // namespace

KernelProbe probe_kernels(Device device) {
  int before = 0;
  cudaError_t code = cudaGetDevice(&before);
  if (code == cudaSuccess) code = cudaSetDevice(device.index);
  if (code != cudaSuccess) return {static_cast<int>(code), 0};
  cudaFuncAttributes attributes{};
  code = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe_kernel));
  (void)cudaSetDevice(before);
  return {static_cast<int>(code), attributes.ptxVersion};
}
}  // namespace accrue::cuda

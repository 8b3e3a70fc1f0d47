#include <accrue/core/cuda/backend.h>
#include <accrue/core/cuda/device.cuh>

namespace accrue::cuda {
namespace {
__global__ void __launch_bounds__(32) probe_kernel() {}
}  // namespace

int probe_kernels(Device device) {
  const cudaError_t code = cudaSetDevice(device.index);
  if (code != cudaSuccess) return static_cast<int>(code);
  cudaFuncAttributes attributes;
  return static_cast<int>(
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe_kernel)));
}
}  // namespace accrue::cuda

// The blocks that cuda_occupancy.h finds for every line "major minor threads_max shared_max threads
// registers shared" of standard input, one number a line. tests/cuda/cubin_test.py compares them
// with occupancy.py.
#include <cuda_occupancy.h>
#include <cstdio>
#include <iostream>

int main() {
  int major, minor, threads_max, threads, registers;
  std::size_t shared_max, shared;
  while (std::cin >> major >> minor >> threads_max >> shared_max >> threads >> registers >>
         shared) {
    cudaOccDeviceProp properties{};
    properties.computeMajor = major;
    properties.computeMinor = minor;
    properties.maxThreadsPerBlock = 1024;
    properties.maxThreadsPerMultiprocessor = threads_max;
    properties.regsPerBlock = properties.regsPerMultiprocessor = 65536;
    properties.warpSize = 32;
    properties.sharedMemPerBlock = 48 * 1024;
    properties.sharedMemPerMultiprocessor = shared_max;
    properties.sharedMemPerBlockOptin = shared_max - 1024;
    properties.reservedSharedMemPerBlock = 1024;
    properties.numSms = 100;
    cudaOccFuncAttributes attributes{};
    attributes.maxThreadsPerBlock = 1024;
    attributes.numRegs = registers;
    attributes.sharedSizeBytes = shared;
    attributes.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    attributes.maxDynamicSharedSizeBytes = shared_max;
    const cudaOccDeviceState state{};
    cudaOccResult result{};
    const auto error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &attributes,
                                                               &state, threads, 0);
    if (error != CUDA_OCC_SUCCESS) {
      std::fprintf(stderr, "cuda_occupancy.h: error %d\n", error);
      return 1;
    }
    std::printf("%d\n", result.activeBlocksPerMultiprocessor);
  }
}

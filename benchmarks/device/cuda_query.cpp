// What the CUDA devices of this machine are: one line "name value" per fact. Exit code 1 without a
// device, and the reason is printed. --architecture prints the first device's alone, as CMake names
// it: 80, 90a, ...
#include <cuda_runtime.h>
#include <cstdio>
#include <cstring>

namespace {
bool failed(cudaError_t code, const char* what) {
  if (code != cudaSuccess)
    std::fprintf(stderr, "cuda_query: %s: %s\n", what, cudaGetErrorString(code));
  return code != cudaSuccess;
}

int attribute(cudaDeviceAttr a, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, a, device) == cudaSuccess ? value : -1;
}

void line(const char* name, double value, const char* unit) {
  std::printf("  %-34s %.6g%s%s\n", name, value, *unit ? " " : "", unit);
}
}  // namespace

int main(int argc, char** argv) {
  int driver = 0, runtime = 0, count = 0;
  if (failed(cudaDriverGetVersion(&driver), "driver version")) return 1;
  if (driver == 0) {
    std::fprintf(stderr, "cuda_query: no NVIDIA driver\n");
    return 1;
  }
  if (failed(cudaRuntimeGetVersion(&runtime), "runtime version")) return 1;
  if (failed(cudaGetDeviceCount(&count), "devices")) return 1;
  if (count == 0) {
    std::fprintf(stderr, "cuda_query: no device\n");
    return 1;
  }
  const bool architecture = argc > 1 && std::strcmp(argv[1], "--architecture") == 0;
  if (!architecture)
    std::printf("driver %d.%d, runtime %d.%d, devices %d\n", driver / 1000, driver % 1000 / 10,
                runtime / 1000, runtime % 1000 / 10, count);
  for (int d = 0; d < count; ++d) {
    const int major = attribute(cudaDevAttrComputeCapabilityMajor, d);
    const int minor = attribute(cudaDevAttrComputeCapabilityMinor, d);
    if (architecture) {
      std::printf("%d%d%s\n", major, minor, major == 9 ? "a" : "");
      return 0;
    }
    cudaDeviceProp p{};
    std::size_t free = 0, total = 0;
    if (failed(cudaGetDeviceProperties(&p, d), "properties")) return 1;
    if (failed(cudaSetDevice(d), "context")) return 1;
    if (failed(cudaMemGetInfo(&free, &total), "memory")) return 1;
    std::printf("device %d: %s, compute capability %d.%d\n", d, p.name, major, minor);
    line("multiprocessors", attribute(cudaDevAttrMultiProcessorCount, d), "");
    line("clock", attribute(cudaDevAttrClockRate, d) * 1e-3, "MHz");
    line("memory clock", attribute(cudaDevAttrMemoryClockRate, d) * 1e-3, "MHz");
    line("memory bus", attribute(cudaDevAttrGlobalMemoryBusWidth, d), "bits");
    line("memory", static_cast<double>(total) / (1 << 30), "GiB");
    line("memory free", static_cast<double>(free) / (1 << 30), "GiB");
    line("L2 cache", static_cast<double>(p.l2CacheSize) / (1 << 20), "MiB");
    line("shared memory of a multiprocessor",
         static_cast<double>(p.sharedMemPerMultiprocessor) / 1024, "KiB");
    line("shared memory of a block, at most", static_cast<double>(p.sharedMemPerBlockOptin) / 1024,
         "KiB");
    line("shared memory of a block, system's",
         static_cast<double>(p.reservedSharedMemPerBlock) / 1024, "KiB");
    line("registers of a multiprocessor", p.regsPerMultiprocessor, "");
    line("threads of a multiprocessor", p.maxThreadsPerMultiProcessor, "");
    line("blocks of a multiprocessor", p.maxBlocksPerMultiProcessor, "");
    line("ECC", p.ECCEnabled, "");
    line("memory pools", attribute(cudaDevAttrMemoryPoolsSupported, d), "");
  }
}

// Kernel launches and what is known about kernels.
#include <algorithm>
#include <map>
#include <memory>

#include "block.h"
#include "fences.h"
#include "memory.h"
#include "report.h"
#include "runtime.h"

using namespace simcuda;

namespace simcuda {
namespace {

std::map<const void*, std::size_t>& dynamic_limits() {
  static auto& m = *new std::map<const void*, std::size_t>;
  return m;
}
std::size_t dynamic_limit(const void* function) {
  const auto it = dynamic_limits().find(function);
  return it == dynamic_limits().end() ? kSharedDefault : it->second;
}
// Who has asked for more than every kernel may have, may have all there is.
std::size_t shared_limit(const void* function) {
  return dynamic_limits().count(function) ? kSharedLimit : kSharedDefault;
}

// Why the hardware would not take the launch; empty: it would.
std::string wrong_shape(dim3 g, dim3 b) {
  const std::uint64_t n = std::uint64_t{b.x} * b.y * b.z;
  if (n == 0 || n > kMaxThreads || b.z > 64) {
    return format("blocks of (%u, %u, %u) threads: 1 to %d are possible, 64 of them along z", b.x,
                  b.y, b.z, kMaxThreads);
  }
  if (!g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) {
    return format("a grid of (%u, %u, %u) blocks: at least 1, at most (2147483647, 65535, 65535)",
                  g.x, g.y, g.z);
  }
  return "";
}
cudaError_t refuse(const void* function, const std::string& why, cudaError_t error) {
  report("launch-limit", function_name(function) + " with " + why);
  return result(error);
}

}  // namespace

cudaError_t launch_impl(const void* function, dim3 grid, dim3 block_size, std::size_t shared_bytes,
                        cudaStream_t stream, Invoke invoke, const void* arguments,
                        std::size_t bytes, bool early) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, "kernel launch")) return result(e);
  if (const cudaError_t e = injected(Call::kLaunch)) return result(e);
  if (!control().kernels) return result(cudaErrorNoKernelImageForDevice);
  if (stream->device != this_thread().device) {
    report("policy", "kernel launch on a stream of another device");
    return result(cudaErrorInvalidResourceHandle);
  }
  if (const std::string why = wrong_shape(grid, block_size); !why.empty()) {
    return refuse(function, why, cudaErrorInvalidConfiguration);
  }
  if (const std::size_t most = dynamic_limit(function); shared_bytes > most) {
    return refuse(function,
                  format("%zu bytes of dynamic shared memory: it may have %zu", shared_bytes, most),
                  cudaErrorInvalidValue);
  }
  ++control().statistics.launches;
  if (early) ++control().statistics.early_launches;
  const auto* const first = static_cast<const unsigned char*>(arguments);
  const auto launch = std::make_shared<Launch>(Launch{function,
                                                      grid,
                                                      block_size,
                                                      shared_bytes,
                                                      shared_limit(function),
                                                      early,
                                                      invoke,
                                                      {first, first + bytes}});
  launch->last_blocks = control().last_blocks;
  Work work;
  work.name = "kernel";
  work.function = function;
  work.run = [launch, stream](std::uint32_t operation) {
    begin_fences();
    const cudaError_t error = run_grid(*launch, operation);
    if (error && !stream->error) stream->error = error;
    add_simulated_time(std::uint64_t{launch->grid.x} * launch->grid.y * launch->grid.z *
                       std::uint64_t(block.threads));
  };
  submit(stream, std::move(work));
  return cudaSuccess;
}

}  // namespace simcuda

extern "C" {

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  const Lock lock;
  if (!control().kernels) return result(cudaErrorNoKernelImageForDevice);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || std::size_t(value) > kSharedLimit) return result(cudaErrorInvalidValue);
    dynamic_limits()[function] = std::size_t(value);
    return cudaSuccess;
  }
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
  return result(cudaErrorInvalidValue);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  const Lock lock;
  if (!control().kernels) return result(cudaErrorNoKernelImageForDevice);
  *attributes = {};
  attributes->maxThreadsPerBlock = kMaxThreads;
  attributes->numRegs = 32;
  attributes->ptxVersion = control().ptx;
  attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = int(dynamic_limit(function));
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                   const void* function,
                                                                   int threads, std::size_t bytes,
                                                                   unsigned) {
  const Lock lock;
  if (threads < 1 || threads > kMaxThreads) return result(cudaErrorInvalidValue);
  *blocks = 0;
  if (bytes > dynamic_limit(function)) return cudaSuccess;
  const std::size_t by_threads = 2048 / ((std::size_t(threads) + 31) / 32 * 32);
  const std::size_t by_memory = (std::size_t{228} << 10) / (bytes + 1024);
  *blocks = int(std::min({by_threads, by_memory, std::size_t{32}}));
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                          int threads, std::size_t bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, bytes,
                                                                0);
}

}  // extern "C"

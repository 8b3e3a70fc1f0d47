// What a CUDA device can do at most: memory by kernels that only copy, read or write, and by the
// driver's own copy; matrix products of random numbers by the fastest of cuBLASLt's algorithms. One
// line "name value unit" each; medians.
//
//   cuda_ceilings [--mib 1024] [--size 8192]
#include <accrue/core/cuda/device.cuh>
#include <accrue/core/tensor.h>
#include <cublasLt.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <vector>

namespace accrue::ceilings {
namespace {
constexpr int kThreads = 256, kEach = 4;  // 16-byte accesses in flight per thread
constexpr std::int64_t kWorkspace = std::int64_t{64} << 20;

__global__ void __launch_bounds__(kThreads)
    copy_kernel(const uint4* __restrict__ from, uint4* __restrict__ to) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads * kEach + threadIdx.x;
  uint4 v[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) v[i] = from[at + i * kThreads];
#pragma unroll
  for (int i = 0; i < kEach; ++i) to[at + i * kThreads] = v[i];
}
__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* from, unsigned* to) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads * kEach + threadIdx.x;
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint4 v = from[at + i * kThreads];
    bits |= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (bits == 0x12345678u) to[0] = bits;  // keeps the loads; next to never true
}
__global__ void __launch_bounds__(kThreads) write_kernel(uint4* to, unsigned value) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads * kEach + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kEach; ++i) to[at + i * kThreads] = uint4{value, value, value, value};
}
// Uniform in [-1, 1): products of zeros run faster than those of real data.
template <class T>
__global__ void __launch_bounds__(kThreads) random_kernel(T* to, std::int64_t n, unsigned seed) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  unsigned h = static_cast<unsigned>(i) * 2654435761u ^ seed;
  h = (h ^ h >> 16) * 0x7feb352du;
  h = (h ^ h >> 15) * 0x846ca68bu;
  h ^= h >> 16;
  to[i] = cuda::from_accumulate<T>(static_cast<float>(h) * 0x1p-31f - 1.0f);
}

void check(cublasStatus_t status, const char* what) {
  ACCRUE_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuda_ceilings: ", what, ": cuBLASLt status ",
               static_cast<int>(status));
}

// Median seconds of a call, of 7 samples of many enqueued calls and one wait.
double seconds_of(const std::function<void()>& run, Stream stream) {
  const auto timed = [&](int calls) {
    ACCRUE_CUDA_CHECK(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(stream.native)));
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) run();
    ACCRUE_CUDA_CHECK(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(stream.native)));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls;
  };
  timed(2);
  const int calls = std::clamp(static_cast<int>(0.02 / timed(2)), 1, 10000);
  std::vector<double> samples;
  for (int i = 0; i < 7; ++i) samples.push_back(timed(calls));
  std::nth_element(samples.begin(), samples.begin() + 3, samples.end());
  return samples[3];
}

void memory(std::int64_t bytes) {
  const Device device = Device::cuda(0);
  const std::int64_t block = std::int64_t{kThreads} * kEach * 16;
  bytes = std::max(block, bytes / block * block);
  const Tensor a = Tensor::zeros({bytes / 4}, DType::kF32, device);
  const Tensor b = Tensor::zeros({bytes / 4}, DType::kF32, device);
  const Stream s = a.stream();
  const auto in = reinterpret_cast<const uint4*>(a.view().ptr);
  const auto out = reinterpret_cast<uint4*>(b.view().ptr);
  const dim3 grid(cuda::blocks_for(bytes, block));
  const auto line = [&](const char* name, double moved, const std::function<void()>& run) {
    std::printf("%-24s %9.1f GB/s\n", name, moved / seconds_of(run, s) * 1e-9);
    std::fflush(stdout);
  };
  const auto size = static_cast<double>(bytes);
  line("copy_by_kernel", 2 * size,
       [&] { cuda::launch(copy_kernel, grid, kThreads, 0, s, in, out); });
  line("copy_by_driver", 2 * size, [&] { b.copy_from(a); });
  line("read", size, [&] {
    cuda::launch(read_kernel, grid, kThreads, 0, s, in, reinterpret_cast<unsigned*>(out));
  });
  line("write", size, [&] { cuda::launch(write_kernel, grid, kThreads, 0, s, out, 3u); });
}

template <class T>
void product(const char* name, std::int64_t n, cudaDataType_t type, cublasComputeType_t compute) {
  const Device device = Device::cuda(0);
  const Tensor a = Tensor::empty({n, n}, dtype_of<T>, device);
  const Tensor b = Tensor::empty({n, n}, dtype_of<T>, device);
  const Tensor c = Tensor::empty({n, n}, dtype_of<T>, device);
  const Tensor workspace = Tensor::empty({kWorkspace / 4}, DType::kF32, device);
  const Stream s = a.stream();
  const dim3 grid(cuda::blocks_for(n * n, kThreads));
  cuda::launch(random_kernel<T>, grid, kThreads, 0, s, a.data<T>(), n * n, 1u);
  cuda::launch(random_kernel<T>, grid, kThreads, 0, s, b.data<T>(), n * n, 2u);
  cublasLtHandle_t handle{};
  cublasLtMatmulDesc_t operation{};
  cublasLtMatrixLayout_t layout{};
  cublasLtMatmulPreference_t preference{};
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const auto limit = static_cast<std::size_t>(kWorkspace);
  check(cublasLtCreate(&handle), "handle");
  check(cublasLtMatmulDescCreate(&operation, compute, CUDA_R_32F), "operation");
  check(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                       sizeof transposed),
        "transposition");
  const auto extent = static_cast<std::uint64_t>(n);
  check(cublasLtMatrixLayoutCreate(&layout, type, extent, extent, n), "layout");
  check(cublasLtMatmulPreferenceCreate(&preference), "preference");
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &limit, sizeof limit),
        "workspace");
  cublasLtMatmulHeuristicResult_t found[8];
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, operation, layout, layout, layout, layout,
                                       preference, 8, found, &count),
        "algorithms");
  ACCRUE_CHECK(count > 0, "cuda_ceilings: cuBLASLt knows no algorithm for ", name);
  const float one = 1, zero = 0;
  double best = 0;
  for (int i = 0; i < count; ++i) {
    const double seconds = seconds_of(
        [&] {
          check(
              cublasLtMatmul(handle, operation, &one, a.view().ptr, layout, b.view().ptr, layout,
                             &zero, c.view().ptr, layout, c.view().ptr, layout, &found[i].algo,
                             workspace.view().ptr, limit, reinterpret_cast<cudaStream_t>(s.native)),
              "product");
        },
        s);
    const auto side = static_cast<double>(n);
    best = std::max(best, 2 * side * side * side / seconds * 1e-12);
  }
  std::printf("%-24s %9.1f TFLOP/s\n", name, best);
  std::fflush(stdout);
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(operation);
  cublasLtDestroy(handle);
}
}  // namespace

void run(std::int64_t mib, std::int64_t size) {
  memory(mib << 20);
  product<bfloat16>("product_bfloat16", size, CUDA_R_16BF, CUBLAS_COMPUTE_32F);
  product<float>("product_tf32", size, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32);
  product<float>("product_float32", size, CUDA_R_32F, CUBLAS_COMPUTE_32F);
}
}  // namespace accrue::ceilings

int main(int argc, char** argv) {
  std::int64_t mib = 1024, size = 8192;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::int64_t value = i + 1 < argc ? std::atoll(argv[i + 1]) : 0;
    if (value <= 0 || (name != "--mib" && name != "--size")) {
      std::fprintf(stderr, "usage: cuda_ceilings [--mib N] [--size N]\n");
      return 2;
    }
    (name == "--mib" ? mib : size) = value;
  }
  try {
    accrue::ceilings::run(mib, size);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cuda_ceilings: %s\n", e.what());
    return 1;
  }
}

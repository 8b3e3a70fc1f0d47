#include <cuda_runtime.h>
#include <limits>
#include <accrue/core/cuda/check.h>
#include <accrue/core/log.h>
#include <accrue/kernels/cuda/gemm_plan.h>

namespace accrue::kernels::cuda {
namespace {
using EventHandle = accrue::cuda::Handle<cudaEvent_t, cudaEventDestroy>;

// From the first to past the last element of C.
std::int64_t extent(const Gemm& g) {
  return (g.batch - 1) * g.batch_stride_c + (g.m - 1) * g.ldc + g.n;
}
}  // namespace

int fastest_algorithm(cublasLtHandle_t handle, const GemmPlan& plan,
                      const cublasLtMatmulHeuristicResult_t* candidates, int count, Stream stream,
                      const Gemm& g) {
  constexpr int kRuns = 5;
  const auto native = reinterpret_cast<cudaStream_t>(stream.native);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  ACCRUE_CUDA_CHECK(cudaStreamIsCapturing(native, &capture));
  if (capture != cudaStreamCaptureStatusNone) return 0;
  const StreamScope on(stream);  // whose order the result's memory follows
  Tensor result;
  try {
    result =
        Tensor::empty({extent(g)}, g.c_type, stream.device, {"gemm.tuning", Category::kWorkspace});
  } catch (const OutOfMemory& e) {
    log(LogLevel::kWarning, std::string("gemm: not tuned: ") + e.what());
    return 0;
  }
  EventHandle begin, end;
  ACCRUE_CUDA_CHECK(cudaEventCreate(begin.put()));
  ACCRUE_CUDA_CHECK(cudaEventCreate(end.put()));
  int best = 0;
  float least = std::numeric_limits<float>::infinity();
  for (int i = 0; i < count; ++i) {
    const auto run = [&] {
      return enqueue_product(handle, plan, candidates[i].algo, stream, g, result.view().ptr);
    };
    if (run() != CUBLAS_STATUS_SUCCESS) continue;
    ACCRUE_CUDA_CHECK(cudaEventRecord(begin.get(), native));
    for (int r = 0; r < kRuns; ++r) ACCRUE_CUBLAS_CHECK(run());
    ACCRUE_CUDA_CHECK(cudaEventRecord(end.get(), native));
    ACCRUE_CUDA_CHECK(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    ACCRUE_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    if (milliseconds < least) least = milliseconds, best = i;
  }
  return best;
}
}  // namespace accrue::kernels::cuda

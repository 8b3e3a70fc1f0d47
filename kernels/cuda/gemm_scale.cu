#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/gemm.h>

namespace accrue::kernels::cuda {
namespace {
constexpr int kThreads = 256;
constexpr std::int64_t kMostRows = 32768;  // of a grid

template <class T, class B>
__global__ void __launch_bounds__(kThreads)
    scale_rows(T* c, std::int64_t rows, std::int64_t m, std::int64_t n, std::int64_t ldc,
               std::int64_t batch_stride, accumulate_t<T> beta, const B* bias) {
  accrue::cuda::wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (j >= n) return;
  const C add = bias ? static_cast<C>(accrue::cuda::to_accumulate(bias[j])) : C(0);
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    T* at = c + row / m * batch_stride + row % m * ldc + j;
    C v = add;
    if (beta != C(0)) v += beta * static_cast<C>(accrue::cuda::to_accumulate(*at));
    *at = accrue::cuda::from_accumulate<T>(v);
  }
}
}  // namespace

void gemm_scale(Stream stream, const Gemm& g) {
  visit_float(g.c_type, [&]<class T>() {
    visit_float(g.bias ? g.bias_type : g.c_type, [&]<class B>() {
      if constexpr (std::is_same_v<T, double> == std::is_same_v<B, double>) {
        const std::int64_t rows = g.m * g.batch;
        const dim3 grid(accrue::cuda::blocks_for(g.n, kThreads),
                        static_cast<unsigned>(std::min(rows, kMostRows)));
        accrue::cuda::launch_early(scale_rows<T, B>, grid, dim3(kThreads), 0, stream,
                                   static_cast<T*>(g.c), rows, g.m, g.n, g.ldc, g.batch_stride_c,
                                   g.beta, static_cast<const B*>(g.bias));
      }
    });
  });
}
}  // namespace accrue::kernels::cuda

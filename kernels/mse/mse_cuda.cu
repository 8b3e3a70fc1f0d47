#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/sink.cuh>
#include <accrue/kernels/cuda/reduce.cuh>
#include <accrue/kernels/mse/mse.h>

namespace accrue::kernels::cuda {
namespace {
using accrue::cuda::blocks_for;
using accrue::cuda::DeviceSink;
using accrue::cuda::is_aligned;
using accrue::cuda::kPack;
using accrue::cuda::launch_early;
using accrue::cuda::wait_for_earlier_kernels;

constexpr int kThreads = 256, kVectors = 2;

template <class T, int kV>
struct SquaredDifference {
  using Real = accumulate_t<T>;
  static constexpr int kVector = kV;
  Elements<T, kV> x, target;
  __device__ __forceinline__ void load(std::int64_t i, int count, Real (&out)[kV]) const {
    Real t[kV];
    x.load(i, count, out);
    target.load(i, count, t);
#pragma unroll
    for (int k = 0; k < kV; ++k) out[k] = (out[k] - t[k]) * (out[k] - t[k]);
  }
};

template <class C>
struct PutLoss {
  C *sum, *weight;
  double n;
  __device__ __forceinline__ void put(std::int64_t, double total) const {
    *sum = static_cast<C>(total);
    *weight = static_cast<C>(n);
  }
};

template <int kV, class T, class A, class B>
__global__ void __launch_bounds__(kThreads)
    gradient(std::int64_t n, const accumulate_t<T>* dsum, const T* x, const T* target,
             DeviceSink<A> dx, DeviceSink<B> dtarget) {
  wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  const C twice = 2 * *dsum;
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * kThreads * kVectors + threadIdx.x) * kV;
  C g[kVectors][kV], t[kVectors][kV];
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    const std::int64_t i = first + u * kThreads * kV;
    const int count = n - i < kV ? static_cast<int>(n - i) : kV;
    Elements<T, kV>{x}.load(i, count, g[u]);
    Elements<T, kV>{target}.load(i, count, t[u]);
#pragma unroll
    for (int k = 0; k < kV; ++k) g[u][k] = (g[u][k] - t[u][k]) * twice;
  }
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    const std::int64_t i = first + u * kThreads * kV;
    const std::int64_t left = n - i;
    const int count = left < kV ? static_cast<int>(left) : kV;
    const auto put = [&](const auto& sink, const C(&v)[kV]) {
      if (!sink.dst) return;
      if (count == kV)
        sink.template put<kV>(i, v);
      else
        sink.template put_partial<kV>(i, count, v);
    };
    put(dx, g[u]);
#pragma unroll
    for (int k = 0; k < kV; ++k) g[u][k] = -g[u][k];
    put(dtarget, g[u]);
  }
}
}  // namespace

void mse_forward(Stream stream, const MseForward& a) {
  const std::int64_t n = a.x.shape.numel();
  double* workspace = a.workspace.data<double>();
  visit_float(a.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T *x = a.x.data<T>(), *target = a.target.data<T>();
    const PutLoss<C> put{a.sum.data<C>(), a.weight.data<C>(), static_cast<double>(n)};
    const auto run = [&]<int kV>(std::integral_constant<int, kV>) {
      reduce(stream, {1, n, 1}, kMseRun, workspace, SquaredDifference<T, kV>{{x}, {target}}, put);
    };
    if (is_aligned(x) && is_aligned(target))
      run(std::integral_constant<int, kPack<T>>{});
    else
      run(std::integral_constant<int, 1>{});
  });
}

void mse_backward(Stream stream, const MseBackward& a) {
  if (!a.dx && !a.dtarget) return;
  const std::int64_t n = a.x.shape.numel();
  visit_float(a.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T *x = a.x.data<T>(), *target = a.target.data<T>();
    const bool aligned = is_aligned(x) && is_aligned(target) && is_aligned(a.dx.dst.ptr) &&
                         is_aligned(a.dtarget.dst.ptr);
    accrue::cuda::visit_sink<T>(a.dx, [&]<class A>() {
      accrue::cuda::visit_sink<T>(a.dtarget, [&]<class B>() {
        const std::int64_t per_block = kThreads * kVectors * (aligned ? kPack<T> : 1);
        launch_early(aligned ? gradient<kPack<T>, T, A, B> : gradient<1, T, A, B>,
                     dim3(blocks_for(n, per_block)), dim3(kThreads), 0, stream, n, a.dsum.data<C>(),
                     x, target, DeviceSink<A>(a.dx), DeviceSink<B>(a.dtarget));
      });
    });
  });
}
}  // namespace accrue::kernels::cuda

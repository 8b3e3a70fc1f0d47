#pragma once
// The gradient of an operand that was repeated over the leading dimensions: see leading_sum in
// kernels/reduce.h.
#include <accrue/core/cuda/sink.cuh>
#include <accrue/kernels/cuda/reduce.cuh>

namespace accrue::kernels::cuda {

template <class S>
struct PutSink {
  accrue::cuda::DeviceSink<S> sink;
  double factor;
  __device__ __forceinline__ void put(std::int64_t j, double sum) const {
    sink.put(j, static_cast<accumulate_t<S>>(sum * factor));
  }
};

/// sink <- factor * the sum of n values over the leading dimensions that leaves `period` of them.
/// values.template operator()<kV>(): the values as reduce() takes them, in vectors of kV.
/// `aligned`: whether every base they read is.
template <class T, class Values>
void leading_sum(Stream stream, std::int64_t n, std::int64_t period, const View& workspace,
                 const GradSink& sink, double factor, bool aligned, Values values) {
  const ReducePlan plan = kernels::leading_sum(n, period);
  auto* partial = static_cast<double*>(workspace.ptr);
  accrue::cuda::visit_sink<T>(sink, [&]<class S>() {
    const PutSink<S> put{accrue::cuda::DeviceSink<S>(sink), factor};
    constexpr int kV = accrue::cuda::kPack<T>;
    if (aligned && period * static_cast<std::int64_t>(sizeof(T)) % 16 == 0)
      reduce(stream, plan, partial, values.template operator()<kV>(), put);
    else
      reduce(stream, plan, partial, values.template operator()<1>(), put);
  });
}
}  // namespace accrue::kernels::cuda

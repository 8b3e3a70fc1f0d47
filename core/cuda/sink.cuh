#pragma once
// The device side of GradSink: dst = beta * dst + alpha * value, dst unread when beta is 0.
#include <accrue/core/cuda/vector.cuh>

namespace accrue::cuda {

/// A sink as a kernel argument. `T` is the dtype of dst, the arithmetic is that of accumulate_t<T>.
template <class T>
struct DeviceSink {
  using Real = accumulate_t<T>;
  T* dst = nullptr;
  Real alpha = 1, beta = 0;

  DeviceSink() = default;
  /// An empty sink stays empty; a dtype other than T is an error.
  explicit DeviceSink(const GradSink& sink)
      : dst(sink ? sink.dst.data<T>() : nullptr), alpha(sink.alpha), beta(sink.beta) {}

  /// One element.
  __device__ __forceinline__ void put(std::int64_t i, Real value) const {
    Real v = alpha * value;
    if (beta != Real(0)) v += beta * static_cast<Real>(to_accumulate(dst[i]));
    dst[i] = from_accumulate<T>(v);
  }
  /// N elements from i on; &dst[i] aligned as load() wants it.
  template <int N>
  __device__ __forceinline__ void put(std::int64_t i, const Real (&value)[N]) const {
    Real v[N];
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = alpha * value[k];
    if (beta != Real(0)) {
      Real old[N];
      load<N>(dst + i, old);
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] += beta * old[k];
    }
    store<N>(dst + i, v);
  }
  /// The first `count` of N elements, one by one.
  template <int N>
  __device__ __forceinline__ void put_partial(std::int64_t i, int count,
                                              const Real (&value)[N]) const {
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (k < count) put(i + k, value[k]);
  }
};

/// Calls `f.template operator()<S>()` with the C++ type of the sink's dtype: T itself (also for an
/// empty sink), or accumulate_t<T>, the two that GradSink allows beside activations of T.
template <class T, class F>
void visit_sink(const GradSink& sink, F&& f) {
  if (!sink || sink.dst.dtype == dtype_of<T>)
    f.template operator()<T>();
  else
    f.template operator()<accumulate_t<T>>();
}
}  // namespace accrue::cuda

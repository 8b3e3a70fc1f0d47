#pragma once
// What every attention kernel on CUDA gets: one attention, and where a gradient goes.
#include <algorithm>
#include <cmath>
#include <limits>
#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/sink.cuh>

namespace accrue::kernels::cuda {
namespace {
using namespace accrue::cuda;

inline constexpr double kLog2E = 1.4426950408889634074, kLn2 = 0.69314718055994530942;

/// Sums of two of them fit an int.
inline constexpr int kLargestSize = 1 << 29;
inline int checked_int(std::int64_t n) {
  ACCRUE_CHECK(n <= kLargestSize, "attention: sizes and strides on cuda must be at most 2^29, got ",
               n);
  return static_cast<int>(n);
}

/// q, k, v with T elements, as in AttentionForward. Every index of one kernel fits an int, every
/// offset an int64.
template <class T>
struct AttentionProblem {
  using C = accumulate_t<T>;
  const T *q, *k, *v;
  int queries, keys, heads, kv_heads, dim;
  int q_stride, kv_stride;
  bool causal;
  C scale;

  template <class Args>
  explicit AttentionProblem(const Args& a)
      : q(a.q.template data<T>()),
        k(a.k.template data<T>()),
        v(a.v.template data<T>()),
        queries(checked_int(a.q.shape[1])),
        keys(checked_int(a.k.shape[1])),
        heads(checked_int(a.q.shape[2])),
        kv_heads(checked_int(a.k.shape[2])),
        dim(checked_int(a.q.shape[3])),
        q_stride(checked_int(a.q_stride ? a.q_stride : a.q.shape[2] * a.q.shape[3])),
        kv_stride(checked_int(a.kv_stride ? a.kv_stride : a.k.shape[2] * a.k.shape[3])),
        causal(a.causal),
        scale(static_cast<C>(a.scale)) {}

  __host__ __device__ int group() const { return heads / kv_heads; }
  __device__ std::int64_t q_at(int b, int t, int h) const {
    return (static_cast<std::int64_t>(b) * queries + t) * q_stride + h * dim;
  }
  __device__ std::int64_t kv_at(int b, int s, int g) const {
    return (static_cast<std::int64_t>(b) * keys + s) * kv_stride + g * dim;
  }
  /// Of y and dy, which are dense.
  __device__ std::int64_t y_at(int b, int t, int h) const {
    return ((static_cast<std::int64_t>(b) * queries + t) * heads + h) * dim;
  }
  __device__ int y_stride() const { return heads * dim; }
  /// Of the log of the denominator, and of delta.
  __device__ std::int64_t row_at(int b, int h, int t) const {
    return (static_cast<std::int64_t>(b) * heads + h) * queries + t;
  }
  /// Key s is seen by the queries from s + shift() on.
  __device__ int shift() const { return causal ? queries - keys : -kLargestSize; }
  /// Query t sees the keys below min(keys, diagonal(t)), if any.
  __device__ int diagonal(int t) const { return t + 1 - shift(); }
  /// Query t sees the keys [0, seen(t)).
  __device__ int seen(int t) const { return max(0, min(keys, diagonal(t))); }
  __device__ int first_query(int s) const { return max(0, s + shift()); }
};

/// A gradient whose dtype, T or accumulate_t<T>, is chosen at run time: it matters only at the end
/// of a kernel.
template <class T>
struct AttentionSink {
  using C = accumulate_t<T>;
  DeviceSink<T> narrow;
  DeviceSink<C> wide;
  bool aligned = true;  // eight elements from a multiple of eight on are whole 16-byte accesses

  explicit AttentionSink(const GradSink& sink) {
    if (!sink) return;
    if (sink.dst.dtype == dtype_of<T>)
      narrow = DeviceSink<T>(sink);
    else
      wide = DeviceSink<C>(sink);
    aligned = is_aligned(sink.dst.ptr);
  }
  __device__ bool wanted() const { return narrow.dst || wide.dst; }
  __device__ void put(std::int64_t i, C value) const {
    if (narrow.dst)
      narrow.put(i, value);
    else
      wide.put(i, value);
  }
  __device__ void put8(std::int64_t i, const C (&value)[8]) const {
    if (!aligned) {
#pragma unroll
      for (int k = 0; k < 8; ++k) put(i + k, value[k]);
    } else if (narrow.dst) {
      narrow.put(i, value);
    } else {
      wide.put(i, value);
    }
  }
};

/// The block's place when blocks of one head follow each other. Of causal attention the last query
/// block sees most keys: with `reversed` it comes first, so that the device ends evenly.
struct BlockPlace {
  int batch, head, block;
  __device__ BlockPlace(int blocks, int heads, bool reversed) {
    const unsigned i = blockIdx.x, n = static_cast<unsigned>(blocks);
    const unsigned all = i / n, at = i - all * n;
    batch = static_cast<int>(all / static_cast<unsigned>(heads));
    head = static_cast<int>(all - static_cast<unsigned>(batch * heads));
    block = static_cast<int>(reversed ? n - 1 - at : at);
  }
};
__host__ __device__ inline int ceil_div(int n, int d) { return (n + d - 1) / d; }
}  // namespace
}  // namespace accrue::kernels::cuda

#include <cstring>
#include <accrue/core/cuda/device.cuh>
#include <accrue/core/random.h>
#include <accrue/kernels/cuda/elementwise.cuh>
#include <accrue/kernels/fill/fill.h>

namespace accrue::kernels::cuda {
namespace {
template <class T>
struct Constant {
  static constexpr int kWidth = kPack<T>;
  T* y;
  T value;
  uint4 packed{};
  Constant(T* p, T v) : y(p), value(v) {
    T copies[kWidth];
    std::fill(copies, copies + kWidth, v);
    std::memcpy(&packed, copies, sizeof packed);
  }
  template <int N>
  struct Values {};
  bool aligned() const { return is_aligned(y); }
  template <int N>
  __device__ __forceinline__ Values<N> read(std::int64_t) const {
    return {};
  }
  template <int N>
  __device__ __forceinline__ void write(std::int64_t i, const Values<N>&) const {
    if constexpr (N == 1)
      y[i] = value;
    else
      *reinterpret_cast<uint4*>(y + i) = packed;
  }
};

template <class T>
T rounded(double v) {
  if constexpr (std::is_same_v<T, bfloat16>)
    return bfloat16(static_cast<float>(v));
  else
    return static_cast<T>(v);
}

// A Philox block gives four numbers. An element alone makes its block again.
template <class T, Distribution kDistribution>
struct Random {
  using C = accumulate_t<T>;
  static constexpr int kWidth = kPack<T> < 4 ? 4 : kPack<T>;
  T* y;
  double a, b;
  std::uint64_t key, stream;
  template <int N>
  struct Values {};
  bool aligned() const { return is_aligned(y); }
  template <int N>
  __device__ __forceinline__ Values<N> read(std::int64_t) const {
    return {};
  }
  template <int N>
  __device__ __forceinline__ void write(std::int64_t i, const Values<N>&) const {
    C out[N];
    if constexpr (N == 1) {
      const auto w = words(i / 4);
      const bool second = i % 4 >= 2;
      C pair[2];
      two(second ? w[2] : w[0], second ? w[3] : w[1], pair[0], pair[1]);
      out[0] = i % 2 == 0 ? pair[0] : pair[1];
    } else {
#pragma unroll
      for (int k = 0; k < N; k += 4) {
        const auto w = words((i + k) / 4);
        two(w[0], w[1], out[k], out[k + 1]);
        two(w[2], w[3], out[k + 2], out[k + 3]);
      }
    }
    store<N>(y + i, out);
  }

 private:
  __device__ static std::uint32_t low(std::uint64_t v) { return static_cast<std::uint32_t>(v); }
  __device__ static std::uint32_t high(std::uint64_t v) {
    return static_cast<std::uint32_t>(v >> 32);
  }
  __device__ __forceinline__ std::array<std::uint32_t, 4> words(std::int64_t block) const {
    const auto n = static_cast<std::uint64_t>(block);
    return philox4x32({low(n), high(n), low(stream), high(stream)}, {low(key), high(key)});
  }
  __device__ __forceinline__ void two(std::uint32_t w0, std::uint32_t w1, C& v0, C& v1) const {
    if constexpr (kDistribution == Distribution::kUniform) {
      const double scale = (b - a) * 0x1p-32;
      v0 = static_cast<C>(a + scale * w0);
      v1 = static_cast<C>(a + scale * w1);
    } else {
      const double radius = b * sqrt(-2.0 * log((w0 + 0.5) * 0x1p-32));
      const double half_turns = (w1 + 0.5) * 0x1p-31;
      v0 = static_cast<C>(a + radius * cospi(half_turns));
      v1 = static_cast<C>(a + radius * sinpi(half_turns));
    }
  }
};

template <class T, Distribution kDistribution>
void run_random(Stream stream, const FillRandom& a) {
  run_elementwise(
      stream, a.y.shape.numel(),
      Random<T, kDistribution>{
          .y = a.y.data<T>(), .a = a.a, .b = a.b, .key = mix64(a.seed), .stream = a.stream_index});
}
}  // namespace

void fill(Stream stream, const Fill& a) {
  visit_any(a.y.dtype, [&]<class T>() {
    run_elementwise(stream, a.y.shape.numel(), Constant<T>(a.y.data<T>(), rounded<T>(a.value)));
  });
}

void fill_random(Stream stream, const FillRandom& a) {
  visit_float(a.y.dtype, [&]<class T>() {
    if (a.distribution == Distribution::kUniform)
      run_random<T, Distribution::kUniform>(stream, a);
    else
      run_random<T, Distribution::kNormal>(stream, a);
  });
}
}  // namespace accrue::kernels::cuda

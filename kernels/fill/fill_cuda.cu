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
  __device__ __forceinline__ void read(std::int64_t, Values<N>&) const {}
  template <int N>
  __device__ __forceinline__ void write(std::int64_t i, Values<N>&) const {
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

// Four numbers from one Philox block. An element alone makes its block again.
template <class T, Distribution kDistribution>
struct Random {
  static constexpr int kWidth = 4;
  T* y;
  double a, b;
  std::uint64_t key, stream;
  template <int N>
  struct Values {};
  bool aligned() const { return is_aligned(y); }
  template <int N>
  __device__ __forceinline__ void read(std::int64_t, Values<N>&) const {}
  template <int N>
  __device__ __forceinline__ void write(std::int64_t i, Values<N>&) const {
    const auto block = static_cast<std::uint64_t>(i) / 4;
    const auto w =
        philox4x32({low(block), high(block), low(stream), high(stream)}, {low(key), high(key)});
    double v[4];
    accumulate_t<T> out[N];
    if constexpr (N == 4) {
      two(w[0], w[1], v[0], v[1]);
      two(w[2], w[3], v[2], v[3]);
#pragma unroll
      for (int k = 0; k < 4; ++k) out[k] = static_cast<accumulate_t<T>>(v[k]);
    } else {
      const bool second = i % 4 >= 2;
      two(second ? w[2] : w[0], second ? w[3] : w[1], v[0], v[1]);
      out[0] = static_cast<accumulate_t<T>>(i % 2 == 0 ? v[0] : v[1]);
    }
    store<N>(y + i, out);
  }

 private:
  __device__ static std::uint32_t low(std::uint64_t v) { return static_cast<std::uint32_t>(v); }
  __device__ static std::uint32_t high(std::uint64_t v) {
    return static_cast<std::uint32_t>(v >> 32);
  }
  __device__ __forceinline__ void two(std::uint32_t u0, std::uint32_t u1, double& v0,
                                      double& v1) const {
    if constexpr (kDistribution == Distribution::kUniform) {
      const double scale = (b - a) * 0x1p-32;
      v0 = a + scale * u0;
      v1 = a + scale * u1;
    } else {
      const double radius = b * sqrt(-2.0 * log((u0 + 0.5) * 0x1p-32));
      const double half_turns = (u1 + 0.5) * 0x1p-31;
      v0 = a + radius * cospi(half_turns);
      v1 = a + radius * sinpi(half_turns);
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

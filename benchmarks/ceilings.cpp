#include <algorithm>
#include <cstring>
#include <accrue/core/isa.h>
#include <accrue/core/parallel.h>
#include <accrue/kernels/linear/linear.h>
#include "benchmarks/bench.h"
#include "benchmarks/ceilings.h"

namespace accrue::bench {
namespace {
// Cache-sized pieces for large blocks, and enough pieces for all threads in small ones.
std::int64_t grain_of(std::int64_t n) {
  return std::clamp<std::int64_t>(n / (4 * num_threads()), 1024, 65536);
}

template <int Bytes>
struct Vector {
  typedef float type __attribute__((vector_size(Bytes)));
};

constexpr int kAccumulators = 12, kRounds = 65536;

// Independent chains, enough to hide the latency; the values stay near 1.
template <int Bytes>
[[gnu::always_inline]] inline float multiply_add() {
  using V = typename Vector<Bytes>::type;
  V a[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) a[i] = V{} + static_cast<float>(i);
  V m = V{} + 0.999f, c = V{} + 0.001f;
  asm volatile("" : "+x"(m), "+x"(c));
  for (int r = 0; r < kRounds; ++r)
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) a[i] = a[i] * m + c;
  V sum{};
  for (int i = 0; i < kAccumulators; ++i) sum += a[i];
  return sum[0];
}
// The sum of n floats, in independent vectors.
template <int Bytes>
[[gnu::always_inline]] inline float add_up(const float* p, std::int64_t n) {
  using V = typename Vector<Bytes>::type;
  constexpr std::int64_t lanes = Bytes / 4, step = 8 * lanes;
  V a[8] = {};
  std::int64_t i = 0;
  for (; i + step <= n; i += step)
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      V v;
      std::memcpy(&v, p + i + j * lanes, sizeof v);
      a[j] += v;
    }
  float rest = 0;
  for (; i < n; ++i) rest += p[i];
  V sum{};
  for (const V& v : a) sum += v;
  for (int j = 0; j < lanes; ++j) rest += sum[j];
  return rest;
}

float fma_portable() { return multiply_add<16>(); }
float add_portable(const float* p, std::int64_t n) { return add_up<16>(p, n); }
#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] float fma_avx2() { return multiply_add<32>(); }
[[gnu::target("avx2,fma")]] float add_avx2(const float* p, std::int64_t n) {
  return add_up<32>(p, n);
}
[[gnu::target("avx512f,prefer-vector-width=512")]] float fma_avx512() { return multiply_add<64>(); }
[[gnu::target("avx512f,prefer-vector-width=512")]] float add_avx512(const float* p,
                                                                    std::int64_t n) {
  return add_up<64>(p, n);
}
#else
constexpr auto fma_avx2 = fma_portable, fma_avx512 = fma_portable;
constexpr auto add_avx2 = add_portable, add_avx512 = add_portable;
#endif

template <class F>
F pick(F portable, F avx2, F avx512) {
  return current_isa() == Isa::kAvx512 ? avx512 : current_isa() == Isa::kAvx2 ? avx2 : portable;
}
}  // namespace

CopyCeiling::CopyCeiling(std::int64_t bytes)
    : from_(Tensor::zeros({bytes / 8}, DType::kF32)),
      to_(Tensor::zeros({bytes / 8}, DType::kF32)) {}
void CopyCeiling::run() const {
  if (!default_device().is_cpu()) return to_.copy_from(from_);
  const float* from = from_.data<float>();
  float* to = to_.data<float>();
  parallel_for(to_.numel(), grain_of(to_.numel()), [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

ReadCeiling::ReadCeiling(std::int64_t bytes)
    : from_(Tensor::zeros({bytes / 4}, DType::kF32)),
      partials_(Tensor::empty({chunk_count(bytes / 4, grain_of(bytes / 4))}, DType::kF32)) {}
void ReadCeiling::run() const {
  const float* from = from_.data<float>();
  float* partials = partials_.data<float>();
  const std::int64_t grain = grain_of(from_.numel());
  const auto add = pick(&add_portable, &add_avx2, &add_avx512);
  parallel_for(from_.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    partials[begin / grain] = add(from + begin, end - begin);
  });
}

GemmCeiling::GemmCeiling(DType dtype) {
  const std::int64_t n = is_gpu() ? 8192 : 128;
  x_ = random({n, n}, dtype, 1);
  weight_ = random({n, n}, dtype, 2);
  y_ = Tensor::empty({n, n}, dtype);
}
void GemmCeiling::run() const {
  kernels::linear_forward(x_.stream(), {.x = x_, .weight = weight_, .y = y_.view()});
}
double GemmCeiling::flops() const {
  const auto n = static_cast<double>(x_.shape()[0]);
  return 2 * n * n * n;
}

void FmaCeiling::run() const {
  const auto multiply = pick(&fma_portable, &fma_avx2, &fma_avx512);
  parallel_for(4 * num_threads(), 1, [&](std::int64_t, std::int64_t) {
    float kept = multiply();
    asm volatile("" : "+x"(kept));
  });
}
double FmaCeiling::flops() const {
  const int lanes = pick(4, 8, 16);
  return 2.0 * kAccumulators * kRounds * lanes * 4 * num_threads();
}
}  // namespace accrue::bench

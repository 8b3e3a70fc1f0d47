#include <accrue/kernels/adamw/adamw.h>
#include <accrue/kernels/cpu/segments.h>
#include <accrue/kernels/stochastic_rounding.h>
#if defined(__x86_64__)
  #include <immintrin.h>
#endif
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/stochastic_rounding.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
constexpr std::int64_t kChunk = 16384;  // elements
constexpr std::int64_t kGrain = 4;      // chunks

// std::sqrt lane by lane would not become one instruction, because it may set errno. (The masked
// forms of AVX-512, since GCC 12 warns about its own plain ones.)
template <class C>
ACCRUE_INLINE Vec<C> root(Vec<C> x) {
  constexpr bool kFloat = std::is_same_v<C, float>;
#if ACCRUE_ISA == 2
  if constexpr (kFloat)
    return (Vec<C>)_mm512_maskz_sqrt_ps(0xFFFF, (__m512)x);
  else
    return (Vec<C>)_mm512_maskz_sqrt_pd(0xFF, (__m512d)x);
#elif ACCRUE_ISA == 1
  if constexpr (kFloat)
    return (Vec<C>)_mm256_sqrt_ps((__m256)x);
  else
    return (Vec<C>)_mm256_sqrt_pd((__m256d)x);
#elif defined(__x86_64__)
  if constexpr (kFloat)
    return (Vec<C>)_mm_sqrt_ps((__m128)x);
  else
    return (Vec<C>)_mm_sqrt_pd((__m128d)x);
#else
  for (int j = 0; j < kLanes<C>; ++j) x[j] = std::sqrt(x[j]);
  return x;
#endif
}

// C: the type of the state. T: of the parameters that the model reads.
template <class C, class T>
void update(const Adamw& a) {
  const StepState& s = *a.state;
  const AdamwOptions& o = s.adamw;
  const double step = static_cast<double>(s.step);
  const C scale = static_cast<C>(s.scale);
  const C beta1 = static_cast<C>(o.beta1), rest1 = static_cast<C>(1 - o.beta1);
  const C beta2 = static_cast<C>(o.beta2), rest2 = static_cast<C>(1 - o.beta2);
  const C eps = static_cast<C>(o.eps);
  const C rate = static_cast<C>(s.lr / (1 - std::pow(o.beta1, step)));
  const C correction = static_cast<C>(1 / std::sqrt(1 - std::pow(o.beta2, step)));
  const C decayed = static_cast<C>(1 - s.lr * o.weight_decay);

  constexpr bool kMaster = !std::is_same_v<C, T>;
  C* p = (kMaster ? a.master : a.value).data<C>();
  T* value = a.value.data<T>();
  const C* g = a.grads.data<C>();
  C* m = a.m.data<C>();
  C* v = a.v.data<C>();
  for_each_chunk(a.segments, kChunk, kGrain,
                 [&](const Segment& segment, std::int64_t, std::int64_t offset, std::int64_t size) {
                   const C keep_weight = segment.decay ? decayed : C(1);
                   vector_loop<C>(size, [&](std::int64_t i, auto part) {
                     const std::int64_t at = offset + i;
                     const Vec<C> grad = load<C>(g + at, part) * scale;
                     const Vec<C> m1 = load<C>(m + at, part) * beta1 + grad * rest1;
                     const Vec<C> v1 = load<C>(v + at, part) * beta2 + grad * grad * rest2;
                     const Vec<C> direction = m1 / (root<C>(v1) * correction + eps);
                     const Vec<C> p1 = load<C>(p + at, part) * keep_weight - direction * rate;
                     store(m + at, m1, part);
                     store(v + at, v1, part);
                     store(p + at, p1, part);
                     if constexpr (kMaster) store(value + at, p1, part);
                   });
                 });
}

// Without master weights. What CUDA computes, operation by operation.
void update_rounded(const Adamw& a) {
  const StepState& s = *a.state;
  const AdamwOptions& o = s.adamw;
  const double step = static_cast<double>(s.step);
  const auto all = [](double x) { return splat(static_cast<float>(x)); };
  const Vec<float> scale = all(s.scale), eps = all(o.eps);
  const Vec<float> beta1 = all(o.beta1), rest1 = all(1 - o.beta1);
  const Vec<float> beta2 = all(o.beta2), rest2 = all(1 - o.beta2);
  const Vec<float> rate = all(s.lr / -std::expm1(step * std::log(o.beta1)));
  const Vec<float> correction = all(1 / std::sqrt(-std::expm1(step * std::log(o.beta2))));
  const Vec<float> decayed = all(1 - s.lr * o.weight_decay);
  const std::uint64_t key = random_key(o.rounding_seed, static_cast<std::uint64_t>(s.step));

  bfloat16* p = a.value.data<bfloat16>();
  const float* g = a.grads.data<float>();
  float* m = a.m.data<float>();
  float* v = a.v.data<float>();
  for_each_chunk(
      a.segments, kChunk, kGrain,
      [&](const Segment& segment, std::int64_t, std::int64_t offset, std::int64_t size) {
        const Vec<float> keep_weight = segment.decay ? decayed : splat(1.0f);
        rounding_loop(key, a.first + segment.offset - segment.before,
                      offset - segment.offset + segment.before, size,
                      [&](std::int64_t i, const std::uint16_t* random, auto part) {
                        const std::int64_t at = offset + i;
                        const Vec<float> grad = load<float>(g + at, part) * scale;
                        const Vec<float> m1 = fused(load<float>(m + at, part), beta1, grad * rest1);
                        const Vec<float> v1 =
                            fused(load<float>(v + at, part), beta2, grad * grad * rest2);
                        const Vec<float> direction = m1 / fused(root<float>(v1), correction, eps);
                        const Vec<float> before = load<float>(p + at, part);
                        const Vec<float> p1 = fused(-direction, rate, before * keep_weight);
                        store(m + at, m1, part);
                        store(v + at, v1, part);
                        store(p + at, round_stochastically(p1, random), part);
                      });
      });
}
}  // namespace

void adamw(Stream, const Adamw& a) {
  if (a.state->skip) return;
  if (a.value.dtype == DType::kBF16 && !a.master) return update_rounded(a);
  visit_float(a.value.dtype, [&]<class T>() { update<accumulate_t<T>, T>(a); });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

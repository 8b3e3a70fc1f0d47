#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/vector.cuh>
#include <accrue/kernels/adamw/adamw.h>
#include <accrue/kernels/cuda/segments.cuh>
#include <accrue/kernels/cuda/stochastic_rounding.cuh>

namespace accrue::kernels::cuda {
namespace {
using accrue::cuda::kWarp;

constexpr int kThreads = 256, kPerBlock = 8192;
// Without master weights a thread takes the eight elements that share their random bits.
template <class P>
inline constexpr int kVector = std::is_same_v<P, bfloat16> ? 8 : 4;

// The blocks of a set. P: of the numbers that are updated. They are the master where there is one,
// and `value` is used only then.
template <class C, class P, class T>
struct Blocks {
  P* p;
  T* value;
  const C* g;
  C *m, *v;
};

template <class C>
struct Step {
  C scale, beta1, rest1, beta2, rest2, eps, rate, correction, keep_weight;
  std::uint64_t key;
  std::int64_t first;   // the element of the set with which the blocks begin
  std::int64_t before;  // elements of the parameter that are not here
};

// Element `element` of the parameter that begins at `offset`, and those that follow.
template <bool kWhole, int kCount, class C, class P, class T>
__device__ __forceinline__ void update_some(const Blocks<C, P, T>& b, std::int64_t offset,
                                            std::int64_t element, int count, const Step<C>& s) {
  const std::int64_t at = offset + element;
  const auto read = [&](const auto* from, C(&out)[kCount]) {
    if constexpr (kWhole)
      accrue::cuda::load<kCount>(from + at, out);
    else
      accrue::cuda::load_partial<kCount>(from + at, count, out);
  };
  const auto write = [&](auto* to, const C(&v)[kCount]) {
    if constexpr (kWhole)
      accrue::cuda::store<kCount>(to + at, v);
    else
      accrue::cuda::store_partial<kCount>(to + at, count, v);
  };
  C g[kCount], m[kCount], v[kCount], p[kCount];
  read(b.g, g);
  read(b.m, m);
  read(b.v, v);
  read(b.p, p);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const C grad = g[k] * s.scale;
    if constexpr (std::is_same_v<P, bfloat16>) {
      m[k] = std::fma(m[k], s.beta1, grad * s.rest1);
      v[k] = std::fma(v[k], s.beta2, grad * grad * s.rest2);
      const C direction = m[k] / std::fma(std::sqrt(v[k]), s.correction, s.eps);
      p[k] = std::fma(-direction, s.rate, p[k] * s.keep_weight);
    } else {
      m[k] = m[k] * s.beta1 + grad * s.rest1;
      v[k] = v[k] * s.beta2 + grad * grad * s.rest2;
      p[k] = p[k] * s.keep_weight - m[k] / (std::sqrt(v[k]) * s.correction + s.eps) * s.rate;
    }
  }
  if constexpr (std::is_same_v<P, bfloat16>)
    round_stochastically(s.key, s.first + offset - s.before, element + s.before, p);
  write(b.m, m);
  write(b.v, v);
  write(b.p, p);
  if constexpr (!std::is_same_v<P, T>) write(b.value, p);
}

template <class C, class P, class T>
__global__ void __launch_bounds__(kThreads) update(SegmentBatch batch, std::int64_t first_element,
                                                   const StepState* state, Blocks<C, P, T> b) {
  accrue::cuda::wait_for_earlier_kernels();
  if (state->skip) return;
  const AdamwOptions& o = state->adamw;
  // 1 - beta^step, once per block: in float64 it is too dear for every thread.
  ACCRUE_SHARED(C, shared, [2]);
  const int thread = static_cast<int>(threadIdx.x);
  const double step = static_cast<double>(state->step);
  if (thread == 0) shared[0] = static_cast<C>(state->lr / -std::expm1(step * std::log(o.beta1)));
  if (thread == kWarp)
    shared[1] = static_cast<C>(1 / std::sqrt(-std::expm1(step * std::log(o.beta2))));
  __syncthreads();

  const auto part = batch.part(kPerBlock);
  const Step<C> s{.scale = static_cast<C>(state->scale),
                  .beta1 = static_cast<C>(o.beta1),
                  .rest1 = static_cast<C>(1 - o.beta1),
                  .beta2 = static_cast<C>(o.beta2),
                  .rest2 = static_cast<C>(1 - o.beta2),
                  .eps = static_cast<C>(o.eps),
                  .rate = shared[0],
                  .correction = shared[1],
                  .keep_weight = part.tag ? static_cast<C>(1 - state->lr * o.weight_decay) : C(1),
                  .key = random_key(o.rounding_seed, static_cast<std::uint64_t>(state->step)),
                  .first = first_element,
                  .before = part.before};
  const bool aligned =
      aligned_to(b.p + part.begin, 16) && aligned_to(b.g + part.begin, 16) &&
      aligned_to(b.m + part.begin, 16) && aligned_to(b.v + part.begin, 16) &&
      (std::is_same_v<P, T> || aligned_to(b.value + part.begin, kVector<P> * sizeof(T)));
  const std::int64_t first = static_cast<std::int64_t>(part.number) * kPerBlock;
  const std::int64_t offset = part.begin - first;
  for (int i = thread * kVector<P>; i < part.size; i += kThreads * kVector<P>) {
    if (aligned && part.size - i >= kVector<P>)
      update_some<true, kVector<P>>(b, offset, first + i, kVector<P>, s);
    else
      update_some<false, kVector<P>>(b, offset, first + i, part.size - i, s);
  }
}

template <class C, class P, class T>
void run(Stream stream, const Adamw& a) {
  constexpr bool kMaster = !std::is_same_v<P, T>;
  const Blocks<C, P, T> blocks{(kMaster ? a.master : a.value).template data<P>(),
                               a.value.template data<T>(), a.grads.template data<C>(),
                               a.m.template data<C>(), a.v.template data<C>()};
  for_each_batch(
      a.segments, kPerBlock, [](const Segment& s) { return s.decay; },
      [&](const SegmentBatch& batch, dim3 grid) {
        accrue::cuda::launch_early(update<C, P, T>, grid, dim3(kThreads), 0, stream, batch, a.first,
                                   a.state, blocks);
      });
}
}  // namespace

void adamw(Stream stream, const Adamw& a) {
  if (a.value.dtype == DType::kBF16 && !a.master) return run<float, bfloat16, bfloat16>(stream, a);
  visit_float(a.value.dtype,
              [&]<class T>() { run<accumulate_t<T>, accumulate_t<T>, T>(stream, a); });
}
}  // namespace accrue::kernels::cuda

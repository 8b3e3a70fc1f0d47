#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/vector.cuh>
#include <accrue/kernels/adamw/adamw.h>
#include <accrue/kernels/cuda/segments.cuh>

namespace accrue::kernels::cuda {
namespace {
using accrue::cuda::kWarp;

constexpr int kThreads = 256, kVector = 4, kPerBlock = 8192;

template <class C>
struct Constants {
  C beta1, rest1, beta2, rest2, eps;
  double log_beta1, log_beta2, weight_decay;
  explicit Constants(const AdamwOptions& o)
      : beta1(static_cast<C>(o.beta1)),
        rest1(static_cast<C>(1 - o.beta1)),
        beta2(static_cast<C>(o.beta2)),
        rest2(static_cast<C>(1 - o.beta2)),
        eps(static_cast<C>(o.eps)),
        log_beta1(std::log(o.beta1)),
        log_beta2(std::log(o.beta2)),
        weight_decay(o.weight_decay) {}
};

// The blocks of a set; p is the master where there is one, and `value` only then.
template <class C, class T>
struct Blocks {
  C* p;
  T* value;
  const C* g;
  C *m, *v;
};

template <class C>
struct Step {
  C scale, rate, correction, keep_weight;
};

template <bool kWhole, class C, class T>
__device__ __forceinline__ void update_some(const Blocks<C, T>& b, std::int64_t at, int count,
                                            const Constants<C>& o, const Step<C>& s) {
  const auto read = [&](const C* from, C(&out)[kVector]) {
    if constexpr (kWhole)
      accrue::cuda::load<kVector>(from + at, out);
    else
      accrue::cuda::load_partial<kVector>(from + at, count, out);
  };
  const auto write = [&](auto* to, const C(&v)[kVector]) {
    if constexpr (kWhole)
      accrue::cuda::store<kVector>(to + at, v);
    else
      accrue::cuda::store_partial<kVector>(to + at, count, v);
  };
  C g[kVector], m[kVector], v[kVector], p[kVector];
  read(b.g, g);
  read(b.m, m);
  read(b.v, v);
  read(b.p, p);
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const C grad = g[k] * s.scale;
    m[k] = m[k] * o.beta1 + grad * o.rest1;
    v[k] = v[k] * o.beta2 + grad * grad * o.rest2;
    p[k] = p[k] * s.keep_weight - m[k] / (std::sqrt(v[k]) * s.correction + o.eps) * s.rate;
  }
  write(b.m, m);
  write(b.v, v);
  write(b.p, p);
  if constexpr (!std::is_same_v<C, T>) write(b.value, p);
}

template <class C, class T>
__global__ void __launch_bounds__(kThreads)
    update(SegmentBatch batch, Constants<C> o, const StepState* state, Blocks<C, T> b) {
  if (state->skip) return;
  // 1 - beta^step, once per block: in float64 it is too dear for every thread.
  ACCRUE_SHARED(C, shared, [2]);
  const int thread = static_cast<int>(threadIdx.x);
  const double step = static_cast<double>(state->step);
  if (thread == 0) shared[0] = static_cast<C>(state->lr / -std::expm1(step * o.log_beta1));
  if (thread == kWarp) shared[1] = static_cast<C>(1 / std::sqrt(-std::expm1(step * o.log_beta2)));
  __syncthreads();

  const auto part = batch.part(kPerBlock);
  const Step<C> s{static_cast<C>(state->scale), shared[0], shared[1],
                  part.tag ? static_cast<C>(1 - state->lr * o.weight_decay) : C(1)};
  const bool aligned =
      aligned_to(b.p + part.begin, 16) && aligned_to(b.g + part.begin, 16) &&
      aligned_to(b.m + part.begin, 16) && aligned_to(b.v + part.begin, 16) &&
      (std::is_same_v<C, T> || aligned_to(b.value + part.begin, kVector * sizeof(T)));
  for (int i = thread * kVector; i < part.size; i += kThreads * kVector) {
    if (aligned && part.size - i >= kVector)
      update_some<true>(b, part.begin + i, kVector, o, s);
    else
      update_some<false>(b, part.begin + i, part.size - i, o, s);
  }
}

template <class C, class T>
void run(Stream stream, const Adamw& a) {
  constexpr bool kMaster = !std::is_same_v<C, T>;
  const Blocks<C, T> blocks{(kMaster ? a.master : a.value).template data<C>(),
                            a.value.template data<T>(), a.grads.template data<C>(),
                            a.m.template data<C>(), a.v.template data<C>()};
  const Constants<C> constants(a.options);
  for_each_batch(
      a.segments, kPerBlock, [](const Segment& s) { return s.decay; },
      [&](const SegmentBatch& batch, dim3 grid) {
        accrue::cuda::launch(update<C, T>, grid, dim3(kThreads), 0, stream, batch, constants,
                             a.state, blocks);
      });
}
}  // namespace

void adamw(Stream stream, const Adamw& a) {
  visit_float(a.value.dtype, [&]<class T>() { run<accumulate_t<T>, T>(stream, a); });
}
}  // namespace accrue::kernels::cuda

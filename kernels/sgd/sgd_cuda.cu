#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/vector.cuh>
#include <accrue/kernels/cuda/segments.cuh>
#include <accrue/kernels/sgd/sgd.h>

namespace accrue::kernels::cuda {
namespace {
constexpr int kThreads = 256, kVector = 4, kPerBlock = 8192;

template <class C>
struct Constants {
  C momentum, rest, weight_decay;
  bool nesterov;
  explicit Constants(const SgdOptions& o)
      : momentum(static_cast<C>(o.momentum)),
        rest(static_cast<C>(1 - o.dampening)),
        weight_decay(static_cast<C>(o.weight_decay)),
        nesterov(o.nesterov) {}
};

// The blocks of a set; p is the master where there is one, and `value` only then.
template <class C, class T>
struct Blocks {
  C* p;
  T* value;
  const C* g;
  C* buffer;  // null without momentum
};

template <class C>
struct Step {
  C scale, rate, decay;
  bool first;
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
  C step[kVector], p[kVector], buffer[kVector] = {};
  read(b.g, step);
  read(b.p, p);
  if (b.buffer && !s.first) read(b.buffer, buffer);
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    step[k] *= s.scale;
    if (s.decay != 0) step[k] += p[k] * s.decay;
  }
  if (b.buffer) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      buffer[k] = s.first ? step[k] : buffer[k] * o.momentum + step[k] * o.rest;
      step[k] = o.nesterov ? step[k] + buffer[k] * o.momentum : buffer[k];
    }
    write(b.buffer, buffer);
  }
#pragma unroll
  for (int k = 0; k < kVector; ++k) p[k] -= step[k] * s.rate;
  write(b.p, p);
  if constexpr (!std::is_same_v<C, T>) write(b.value, p);
}

template <class C, class T>
__global__ void __launch_bounds__(kThreads)
    update(SegmentBatch batch, Constants<C> o, const StepState* state, Blocks<C, T> b) {
  if (state->skip) return;
  const auto part = batch.part(kPerBlock);
  const Step<C> s{static_cast<C>(state->scale), static_cast<C>(state->lr),
                  part.tag ? o.weight_decay : C(0), state->step == 1};
  const bool aligned =
      aligned_to(b.p + part.begin, 16) && aligned_to(b.g + part.begin, 16) &&
      (!b.buffer || aligned_to(b.buffer + part.begin, 16)) &&
      (std::is_same_v<C, T> || aligned_to(b.value + part.begin, kVector * sizeof(T)));
  for (int i = static_cast<int>(threadIdx.x) * kVector; i < part.size; i += kThreads * kVector) {
    if (aligned && part.size - i >= kVector)
      update_some<true>(b, part.begin + i, kVector, o, s);
    else
      update_some<false>(b, part.begin + i, part.size - i, o, s);
  }
}

template <class C, class T>
void run(Stream stream, const Sgd& a) {
  constexpr bool kMaster = !std::is_same_v<C, T>;
  const Constants<C> constants(a.options);
  const Blocks<C, T> blocks{
      (kMaster ? a.master : a.value).template data<C>(), a.value.template data<T>(),
      a.grads.template data<C>(),
      constants.momentum != 0 ? a.momentum_buffer.template data<C>() : nullptr};
  for_each_batch(
      a.segments, kPerBlock, [](const Segment& s) { return s.decay; },
      [&](const SegmentBatch& batch, dim3 grid) {
        accrue::cuda::launch(update<C, T>, grid, dim3(kThreads), 0, stream, batch, constants,
                             a.state, blocks);
      });
}
}  // namespace

void sgd(Stream stream, const Sgd& a) {
  visit_float(a.value.dtype, [&]<class T>() { run<accumulate_t<T>, T>(stream, a); });
}
}  // namespace accrue::kernels::cuda

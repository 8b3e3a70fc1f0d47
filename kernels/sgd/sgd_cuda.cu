#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/vector.cuh>
#include <accrue/kernels/cuda/segments.cuh>
#include <accrue/kernels/cuda/stochastic_rounding.cuh>
#include <accrue/kernels/sgd/sgd.h>

namespace accrue::kernels::cuda {
namespace {
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
  C* buffer;  // not used, and may be null, without momentum
};

template <class C>
struct Step {
  C scale, rate, decay, momentum, rest;
  bool nesterov, first;
  std::uint64_t key;
  std::int64_t origin;  // the element of the set with which the blocks begin
  std::int64_t before;  // elements of the parameter that are not here
};

// x + a b; without master weights rounded once, so that every device has the same bits.
template <class P, class C>
__device__ __forceinline__ C add_product(C x, C a, C b) {
  if constexpr (std::is_same_v<P, bfloat16>)
    return std::fma(a, b, x);
  else
    return x + a * b;
}

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
  C step[kCount], p[kCount], buffer[kCount] = {};
  read(b.g, step);
  read(b.p, p);
  if (b.buffer && !s.first) read(b.buffer, buffer);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    step[k] *= s.scale;
    if (s.decay != 0) step[k] = add_product<P>(step[k], p[k], s.decay);
  }
  if (b.buffer) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if constexpr (std::is_same_v<P, bfloat16>)
        buffer[k] = s.first ? step[k] : std::fma(buffer[k], s.momentum, step[k] * s.rest);
      else
        buffer[k] = s.first ? step[k] : buffer[k] * s.momentum + step[k] * s.rest;
      step[k] = s.nesterov ? add_product<P>(step[k], buffer[k], s.momentum) : buffer[k];
    }
    write(b.buffer, buffer);
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) p[k] = add_product<P>(p[k], -step[k], s.rate);
  if constexpr (std::is_same_v<P, bfloat16>)
    round_stochastically(s.key, s.origin + offset - s.before, element + s.before, p);
  write(b.p, p);
  if constexpr (!std::is_same_v<P, T>) write(b.value, p);
}

template <class C, class P, class T>
__global__ void __launch_bounds__(kThreads) update(SegmentBatch batch, std::int64_t first_element,
                                                   const StepState* state, Blocks<C, P, T> b) {
  accrue::cuda::wait_for_earlier_kernels();
  if (state->skip) return;
  const SgdOptions& o = state->sgd;
  if (o.momentum == 0) b.buffer = nullptr;
  const auto part = batch.part(kPerBlock);
  const Step<C> s{.scale = static_cast<C>(state->scale),
                  .rate = static_cast<C>(state->lr),
                  .decay = part.tag ? static_cast<C>(o.weight_decay) : C(0),
                  .momentum = static_cast<C>(o.momentum),
                  .rest = static_cast<C>(1 - o.dampening),
                  .nesterov = o.nesterov,
                  .first = state->step == 1,
                  .key = random_key(o.rounding_seed, static_cast<std::uint64_t>(state->step)),
                  .origin = first_element,
                  .before = part.before};
  const bool aligned =
      aligned_to(b.p + part.begin, 16) && aligned_to(b.g + part.begin, 16) &&
      (!b.buffer || aligned_to(b.buffer + part.begin, 16)) &&
      (std::is_same_v<P, T> || aligned_to(b.value + part.begin, kVector<P> * sizeof(T)));
  const std::int64_t before = static_cast<std::int64_t>(part.number) * kPerBlock;
  const std::int64_t offset = part.begin - before;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread * kVector<P>; i < part.size; i += kThreads * kVector<P>) {
    if (aligned && part.size - i >= kVector<P>)
      update_some<true, kVector<P>>(b, offset, before + i, kVector<P>, s);
    else
      update_some<false, kVector<P>>(b, offset, before + i, part.size - i, s);
  }
}

template <class C, class P, class T>
void run(Stream stream, const Sgd& a) {
  constexpr bool kMaster = !std::is_same_v<P, T>;
  const Blocks<C, P, T> blocks{(kMaster ? a.master : a.value).template data<P>(),
                               a.value.template data<T>(), a.grads.template data<C>(),
                               a.momentum_buffer ? a.momentum_buffer.template data<C>() : nullptr};
  for_each_batch(
      a.segments, kPerBlock, [](const Segment& s) { return s.decay; },
      [&](const SegmentBatch& batch, dim3 grid) {
        accrue::cuda::launch_early(update<C, P, T>, grid, dim3(kThreads), 0, stream, batch, a.first,
                                   a.state, blocks);
      });
}
}  // namespace

void sgd(Stream stream, const Sgd& a) {
  if (a.value.dtype == DType::kBF16 && !a.master) return run<float, bfloat16, bfloat16>(stream, a);
  visit_float(a.value.dtype,
              [&]<class T>() { run<accumulate_t<T>, accumulate_t<T>, T>(stream, a); });
}
}  // namespace accrue::kernels::cuda

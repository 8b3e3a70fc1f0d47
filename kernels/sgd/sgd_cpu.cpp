#include <accrue/kernels/cpu/segments.h>
#include <accrue/kernels/sgd/sgd.h>
#include <accrue/kernels/stochastic_rounding.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/stochastic_rounding.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
constexpr std::int64_t kSgdChunk = 16384;  // elements
constexpr std::int64_t kSgdGrain = 4;      // chunks

// C: the type of the state. T: of the parameters that the model reads.
template <class C, class T>
void update(const Sgd& a) {
  const StepState& s = *a.state;
  const SgdOptions& o = s.sgd;
  const C scale = static_cast<C>(s.scale), rate = static_cast<C>(s.lr);
  const C momentum = static_cast<C>(o.momentum);
  const C rest = static_cast<C>(1 - o.dampening);
  const bool first = s.step == 1, nesterov = o.nesterov;

  constexpr bool kMaster = !std::is_same_v<C, T>;
  C* p = (kMaster ? a.master : a.value).data<C>();
  T* value = a.value.data<T>();
  const C* g = a.grads.data<C>();
  C* b = momentum != 0 ? a.momentum_buffer.data<C>() : nullptr;
  for_each_chunk(a.segments, kSgdChunk, kSgdGrain,
                 [&](const Segment& segment, std::int64_t, std::int64_t offset, std::int64_t size) {
                   const C decay = segment.decay ? static_cast<C>(o.weight_decay) : C(0);
                   vector_loop<C>(size, [&](std::int64_t i, auto part) {
                     const std::int64_t at = offset + i;
                     const Vec<C> before = load<C>(p + at, part);
                     Vec<C> step = load<C>(g + at, part) * scale;
                     if (decay != 0) step += before * decay;
                     if (b) {
                       const Vec<C> buffer =
                           first ? step : load<C>(b + at, part) * momentum + step * rest;
                       store(b + at, buffer, part);
                       step = nesterov ? step + buffer * momentum : buffer;
                     }
                     const Vec<C> after = before - step * rate;
                     store(p + at, after, part);
                     if constexpr (kMaster) store(value + at, after, part);
                   });
                 });
}

// Without master weights. What CUDA computes, operation by operation.
void update_rounded(const Sgd& a) {
  const StepState& s = *a.state;
  const SgdOptions& o = s.sgd;
  const auto all = [](double x) { return splat(static_cast<float>(x)); };
  const Vec<float> scale = all(s.scale), rate = all(s.lr), weight_decay = all(o.weight_decay);
  const Vec<float> momentum = all(o.momentum), rest = all(1 - o.dampening);
  const bool first = s.step == 1;
  const std::uint64_t key = random_key(o.rounding_seed, static_cast<std::uint64_t>(s.step));

  bfloat16* p = a.value.data<bfloat16>();
  const float* g = a.grads.data<float>();
  float* b = o.momentum != 0 ? a.momentum_buffer.data<float>() : nullptr;
  for_each_chunk(a.segments, kSgdChunk, kSgdGrain,
                 [&](const Segment& segment, std::int64_t, std::int64_t offset, std::int64_t size) {
                   rounding_loop(key, a.first + segment.offset - segment.before,
                                 offset - segment.offset + segment.before, size,
                                 [&](std::int64_t i, const std::uint16_t* random, auto part) {
                                   const std::int64_t at = offset + i;
                                   const Vec<float> before = load<float>(p + at, part);
                                   Vec<float> step = load<float>(g + at, part) * scale;
                                   if (segment.decay) step = fused(before, weight_decay, step);
                                   if (b) {
                                     const Vec<float> buffer =
                                         first ? step
                                               : fused(load<float>(b + at, part), momentum,
                                                       step * rest);
                                     store(b + at, buffer, part);
                                     step = o.nesterov ? fused(buffer, momentum, step) : buffer;
                                   }
                                   const Vec<float> after = fused(-step, rate, before);
                                   store(p + at, round_stochastically(after, random), part);
                                 });
                 });
}
}  // namespace

void sgd(Stream, const Sgd& a) {
  if (a.state->skip) return;
  if (a.value.dtype == DType::kBF16 && !a.master) return update_rounded(a);
  visit_float(a.value.dtype, [&]<class T>() { update<accumulate_t<T>, T>(a); });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>

// bfloat16 parameters without master weights: AdamW and SGD round stochastically.
#include <bit>
#include <cmath>
#include <cstring>
#include <accrue/core/isa.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/adamw/adamw.h>
#include <accrue/kernels/sgd/sgd.h>
#include <accrue/kernels/stochastic_rounding.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/device_state.h"

using namespace accrue;
using kernels::Segment;
using kernels::StepState;

namespace {
float number(std::int64_t i, std::int64_t salt) {
  return static_cast<float>(
      std::sin(static_cast<double>(i) * 0.7 + static_cast<double>(salt) * 1.3));
}
float as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }

std::vector<bfloat16> start(std::int64_t n) {
  std::vector<bfloat16> p;
  for (std::int64_t i = 0; i < n; ++i) p.emplace_back(number(i, 0));
  return p;
}

// The definition, one element at a time.
bfloat16 rounded(float x, std::uint64_t seed, std::int64_t step, std::int64_t offset,
                 std::int64_t i) {
  if (std::isnan(x)) return bfloat16(x);
  const auto place = static_cast<std::uint64_t>(offset);
  const auto words =
      philox4x32({static_cast<std::uint32_t>(i / 8), kernels::kRoundingSite,
                  static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32)},
                 [&]() -> std::array<std::uint32_t, 2> {
                   const auto key = random_key(seed, static_cast<std::uint64_t>(step));
                   return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
                 }());
  const std::uint32_t word = words[static_cast<std::size_t>(i % 8 / 2)];
  const std::uint32_t r = i % 2 ? word >> 16 : word & 0xffffu;
  return bfloat16::from_bits(
      static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(x) + r) >> 16));
}

// Three steps of an optimizer over blocks without master weights.
struct Blocks {
  std::int64_t n;
  std::vector<Segment> segments;
  Tensor value, m, v;
  std::vector<bfloat16> p2;  // the same in plain loops
  std::vector<float> m2, v2;

  explicit Blocks(std::int64_t count, std::vector<Segment> s)
      : n(count),
        segments(std::move(s)),
        value(Tensor::from(start(n), {n})),
        m(Tensor::zeros({n}, DType::kF32)),
        v(Tensor::zeros({n}, DType::kF32)),
        p2(start(n)),
        m2(static_cast<std::size_t>(n)),
        v2(static_cast<std::size_t>(n)) {}
  static StepState state_of(std::int64_t step) {
    StepState s;
    s.scale = 1.0 / 3;
    s.lr = 0.01 / static_cast<double>(step);
    s.step = step;
    return s;
  }
  std::vector<float> gradient(std::int64_t step) const {
    std::vector<float> g;
    for (std::int64_t i = 0; i < n; ++i) g.push_back(3 * number(i, 5 + step));
    return g;
  }
  template <class F>
  void each(F&& f) {
    for (const Segment& s : segments)
      for (std::int64_t i = 0; i < s.size; ++i) f(s, i, static_cast<std::size_t>(s.offset + i));
  }

  void adamw(std::int64_t steps, const kernels::AdamwOptions& o) {
    for (std::int64_t t = 1; t <= steps; ++t) {
      StepState s = state_of(t);
      s.adamw = o;
      const auto g = gradient(t);
      const test::DeviceState state(s);
      kernels::adamw(value.stream(), {.value = value.view(),
                                      .master = {},
                                      .grads = Tensor::from(g, {n}),
                                      .m = m.view(),
                                      .v = v.view(),
                                      .segments = segments,
                                      .state = state.get()});
      const auto f = [](double x) { return static_cast<float>(x); };
      const double step = static_cast<double>(t);
      const float rate = f(s.lr / -std::expm1(step * std::log(o.beta1)));
      const float correction = f(1 / std::sqrt(-std::expm1(step * std::log(o.beta2))));
      each([&](const Segment& seg, std::int64_t i, std::size_t at) {
        const float x = g[at] * f(s.scale);
        const float a = x * f(1 - o.beta1), b = x * x * f(1 - o.beta2);
        m2[at] = std::fma(m2[at], f(o.beta1), a);
        v2[at] = std::fma(v2[at], f(o.beta2), b);
        const float d = m2[at] / std::fma(std::sqrt(v2[at]), correction, f(o.eps));
        const float kept =
            static_cast<float>(p2[at]) * (seg.decay ? f(1 - s.lr * o.weight_decay) : 1.0f);
        p2[at] = rounded(std::fma(-d, rate, kept), o.rounding_seed, t, seg.offset, i);
      });
    }
  }
  void sgd(std::int64_t steps, const kernels::SgdOptions& o) {
    for (std::int64_t t = 1; t <= steps; ++t) {
      StepState s = state_of(t);
      s.sgd = o;
      const auto g = gradient(t);
      const test::DeviceState state(s);
      kernels::sgd(value.stream(), {.value = value.view(),
                                    .master = {},
                                    .grads = Tensor::from(g, {n}),
                                    .momentum_buffer = o.momentum != 0 ? m.view() : View{},
                                    .segments = segments,
                                    .state = state.get()});
      const auto f = [](double x) { return static_cast<float>(x); };
      each([&](const Segment& seg, std::int64_t i, std::size_t at) {
        float d = g[at] * f(s.scale);
        const auto before = static_cast<float>(p2[at]);
        if (seg.decay) d = std::fma(before, f(o.weight_decay), d);
        if (o.momentum != 0) {
          const float part = d * f(1 - o.dampening);
          m2[at] = t == 1 ? d : std::fma(m2[at], f(o.momentum), part);
          d = o.nesterov ? std::fma(m2[at], f(o.momentum), d) : m2[at];
        }
        p2[at] = rounded(std::fma(-d, f(s.lr), before), o.rounding_seed, t, seg.offset, i);
      });
    }
  }
  // To the bit, parameters and moments.
  bool equal() const {
    const auto p = value.to_vector<bfloat16>();
    const auto a = m.to_vector<float>(), b = v.to_vector<float>();
    return std::memcmp(p.data(), p2.data(), p.size() * sizeof(bfloat16)) == 0 &&
           std::memcmp(a.data(), m2.data(), a.size() * sizeof(float)) == 0 &&
           std::memcmp(b.data(), v2.data(), b.size() * sizeof(float)) == 0;
  }
};

// One step of SGD with gradient `g` everywhere.
std::vector<float> one_step(const std::vector<float>& p, float g, double lr, std::int64_t step,
                            std::uint64_t seed = 1) {
  const auto n = static_cast<std::int64_t>(p.size());
  std::vector<bfloat16> start;
  for (const float x : p) start.emplace_back(x);
  const Tensor value = Tensor::from(start, {n});
  StepState s;
  s.scale = 1;
  s.lr = lr;
  s.step = step;
  s.sgd.rounding_seed = seed;
  const test::DeviceState state(s);
  const std::vector<Segment> segments{{0, n, false}};
  const Tensor grads = Tensor::from(std::vector<float>(p.size(), g), {n});
  kernels::sgd(value.stream(), {.value = value.view(),
                                .master = {},
                                .grads = grads,
                                .momentum_buffer = {},
                                .segments = segments,
                                .state = state.get()});
  std::vector<float> out;
  for (const bfloat16 x : value.to_vector<bfloat16>()) out.push_back(static_cast<float>(x));
  return out;
}
}  // namespace

TEST_CASE("stochastic rounding: the bits of plain loops on every device and instruction set",
          "[kernels][rounding]") {
  const std::int64_t n = default_device().is_cpu() ? 40000 : 18000;
  const Isa best = current_isa();
  const int threads = num_threads();
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best || (!default_device().is_cpu() && isa != Isa::kPortable)) continue;
    set_isa(isa);
    for (const int t : {1, 2, 7}) {
      if (!default_device().is_cpu() && t != 1) continue;
      set_num_threads(t);
      // Empty, tiny, unaligned, and cut into several chunks.
      const std::vector<Segment> segments{{0, 1, true},
                                          {64, 33, false},
                                          {128, 0, true},
                                          {195, 17000, true},
                                          {17195, n - 17200, true}};
      Blocks a(n, segments);
      a.adamw(3, {.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1, .rounding_seed = 11});
      CHECK(a.equal());
      Blocks plain(n, segments);
      plain.sgd(2, {.rounding_seed = 1ull << 40});
      CHECK(plain.equal());
      Blocks nesterov(n, segments);
      nesterov.sgd(3, {.momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
      CHECK(nesterov.equal());
      Blocks damped(n, segments);
      damped.sgd(3, {.momentum = 0.9, .dampening = 0.3});
      CHECK(damped.equal());
    }
  }
  set_num_threads(threads);
  set_isa(best);
}

TEST_CASE("stochastic rounding: pieces of parameters get the bits of the whole",
          "[kernels][rounding]") {
  // Cut at multiples of 4096, as ranks cut them.
  const std::vector<Segment> segments{{0, 100, true}, {128, 9000, false}, {9152, 3000, true}};
  const std::int64_t n = 12160, cut = 4096;
  const bool adam = GENERATE(true, false);
  Blocks whole(n, segments), parts(n, segments);
  const kernels::AdamwOptions adamw{.beta1 = 0.8, .beta2 = 0.95, .rounding_seed = 5};
  const kernels::SgdOptions sgd{.momentum = 0.9, .weight_decay = 0.1, .rounding_seed = 5};
  if (adam)
    whole.adamw(2, adamw);
  else
    whole.sgd(2, sgd);
  for (std::int64_t step = 1; step <= 2; ++step) {
    const Tensor grads = Tensor::from(parts.gradient(step), {n});
    StepState s = Blocks::state_of(step);
    s.adamw = adamw;
    s.sgd = sgd;
    const test::DeviceState state(s);
    for (std::int64_t first = 0; first < n; first += cut) {
      const std::int64_t count = std::min(cut, n - first);
      std::vector<Segment> here;
      for (const Segment& s : segments) {
        const auto from = std::max(s.offset, first), to = std::min(s.offset + s.size, first + cut);
        if (from < to) here.push_back({from - first, to - from, s.decay, from - s.offset});
      }
      const auto view = [&](const Tensor& t) { return t.window(first, {count}).view(); };
      if (adam)
        kernels::adamw(grads.stream(), {.value = view(parts.value),
                                        .master = {},
                                        .grads = view(grads),
                                        .m = view(parts.m),
                                        .v = view(parts.v),
                                        .segments = here,
                                        .state = state.get(),
                                        .first = first});
      else
        kernels::sgd(grads.stream(), {.value = view(parts.value),
                                      .master = {},
                                      .grads = view(grads),
                                      .momentum_buffer = view(parts.m),
                                      .segments = here,
                                      .state = state.get(),
                                      .first = first});
    }
  }
  const auto bits = [](const Tensor& t) {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(t.view().bytes()));
    backend(t.device()).copy_to_host(out.data(), t.view().ptr, t.view().bytes(), t.stream());
    return out;
  };
  CHECK(bits(parts.value) == bits(whole.value));
  CHECK(bits(parts.m) == bits(whole.m));
  CHECK(bits(parts.v) == bits(whole.v));
}

TEST_CASE("stochastic rounding: the expectation is the exact value", "[kernels][rounding]") {
  // Between 1 and its upper neighbour 1 + 2^-7, at fractions f of the way.
  const std::size_t n = 4096;
  const double ulp = 0.0078125;
  const double steps = default_device().is_cpu() ? 50 : 4;
  for (const double f : {0.0, 1.0 / 65536, 0.01, 0.25, 0.5, 0.9}) {
    double sum = 0, ups = 0;
    for (int s = 1; s <= static_cast<int>(steps); ++s)
      for (const float x : one_step(std::vector<float>(n, 1.0f), -1.0f, f * ulp, s)) {
        const bool up = x == 1.0f + static_cast<float>(ulp);
        if (x != 1.0f && !up) FAIL_CHECK("not a neighbour: " << x);
        ups += up;
        sum += static_cast<double>(x) - 1;
      }
    const double count = static_cast<double>(n) * steps;
    const double deviation = std::sqrt(f * (1 - f) / count);
    INFO("fraction " << f << ", up " << ups / count);
    CHECK(std::abs(ups / count - f) <= 4.5 * deviation);
    CHECK(std::abs(sum / count - f * ulp) <= 4.5 * deviation * ulp);
  }
  // Downwards and below zero alike.
  double mean = 0;
  for (const float x : one_step(std::vector<float>(n, -3.0f), 1.0f, 0.004, 1)) mean += x;
  CHECK(mean / static_cast<double>(n) == Approx(-3.004).margin(4.5 * 0.0156 * 0.5 / 64));
}

TEST_CASE("stochastic rounding: steps far below half a unit move the weights on average",
          "[kernels][rounding]") {
  // 100 steps of 1/100 unit of 1.0: rounding to nearest would never move.
  CHECK(static_cast<float>(bfloat16(1.0f + 0.000078125f)) == 1.0f);
  const std::size_t n = 1000;
  const int steps = default_device().is_cpu() ? 100 : 20;
  std::vector<float> p(n, 1.0f);
  for (int s = 1; s <= steps; ++s) p = one_step(p, -1.0f, 0.000078125, s);
  double mean = 0;
  for (const float x : p) mean += x / static_cast<double>(n);
  const double expected = steps * 0.000078125;
  const double deviation = std::sqrt(steps * 0.01 / static_cast<double>(n)) * 0.0078125;
  CHECK(mean - 1 == Approx(expected).margin(4.5 * deviation));
}

TEST_CASE("stochastic rounding: representable numbers, infinities and NaN stay",
          "[kernels][rounding]") {
  const float largest = as_float(0x7f7f0000u), tiny = as_float(0x00800000u);
  const std::vector<float> p{0.0f, 1.0f, -2.5f, largest, -largest, tiny, INFINITY, -INFINITY};
  for (int step = 1; step <= 5; ++step) CHECK(one_step(p, 0.0f, 0.1, step) == p);
  CHECK(std::isnan(one_step({as_float(0x7fffffffu)}, 0.0f, 0.1, 1)[0]));
  CHECK(std::isnan(one_step({as_float(0xffffffffu)}, 0.0f, 0.1, 1)[0]));
  // Another seed or another step: other bits.
  const std::vector<float> ones(64, 1.0f);
  const auto first = one_step(ones, -1.0f, 0.004, 1);
  CHECK(one_step(ones, -1.0f, 0.004, 1) == first);
  CHECK(one_step(ones, -1.0f, 0.004, 2) != first);
  CHECK(one_step(ones, -1.0f, 0.004, 1, 2) != first);
}

#include <cmath>
#include <cstring>
#include <accrue/core/isa.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/adamw/adamw.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/device_state.h"

using namespace accrue;
using kernels::AdamwOptions;
using kernels::Segment;
using kernels::StepState;
using test::DeviceState;

namespace {
using Values = std::vector<double>;

double number(std::size_t i, int salt) {
  return std::sin(static_cast<double>(i) * 0.7 + salt * 1.3) +
         0.1 * std::cos(static_cast<double>(i) * 3.1 + salt);
}

// One set of blocks, and the same numbers in plain double loops.
struct Run {
  DType dtype, wide;
  std::int64_t n;
  std::vector<Segment> segments;
  Tensor value, master, m, v;
  Values p2, m2, v2;
  StepState state;

  Run(DType t, std::int64_t size, std::vector<Segment> s, AdamwOptions o = {})
      : dtype(t),
        wide(t == DType::kF64 ? DType::kF64 : DType::kF32),
        n(size),
        segments(std::move(s)),
        m(Tensor::zeros({n}, wide)),
        v(Tensor::zeros({n}, wide)),
        m2(static_cast<std::size_t>(n)),
        v2(static_cast<std::size_t>(n)) {
    state.adamw = o;
    for (std::size_t i = 0; i < m2.size(); ++i)
      p2.push_back(static_cast<double>(static_cast<float>(number(i, 0))));
    master = make(p2, wide);
    value = dtype == DType::kBF16 ? Tensor::zeros({n}, dtype) : master;
  }
  static Tensor make(const Values& x, DType t) {
    const Shape shape{static_cast<std::int64_t>(x.size())};
    if (t == DType::kF64) return Tensor::from(x, shape);
    return Tensor::from(std::vector<float>(x.begin(), x.end()), shape);
  }
  static Values read(const Tensor& t) {
    if (t.dtype() == DType::kF64) return t.to_vector<double>();
    const auto x = t.to_vector<float>();
    return {x.begin(), x.end()};
  }

  void step(double scale, double lr) {
    Values g;
    for (std::size_t i = 0; i < p2.size(); ++i)
      g.push_back(
          static_cast<double>(static_cast<float>(number(i, 5 + static_cast<int>(state.step)) * 3)));
    state.scale = scale;
    state.lr = lr;
    ++state.step;
    const Tensor grads = make(g, wide);
    const DeviceState on_device(state);
    kernels::adamw(value.stream(), {.value = value.view(),
                                    .master = master.view(),
                                    .grads = grads,
                                    .m = m.view(),
                                    .v = v.view(),
                                    .segments = segments,
                                    .state = on_device.get()});
    const AdamwOptions& options = state.adamw;
    const double t = static_cast<double>(state.step);
    const double c1 = 1 - std::pow(options.beta1, t), c2 = 1 - std::pow(options.beta2, t);
    for (const Segment& s : segments)
      for (std::int64_t j = s.offset; j < s.offset + s.size; ++j) {
        const auto i = static_cast<std::size_t>(j);
        const double x = g[i] * scale;
        if (s.decay) p2[i] *= 1 - lr * options.weight_decay;
        m2[i] = options.beta1 * m2[i] + (1 - options.beta1) * x;
        v2[i] = options.beta2 * v2[i] + (1 - options.beta2) * x * x;
        p2[i] -= lr * (m2[i] / c1) / (std::sqrt(v2[i] / c2) + options.eps);
      }
  }
  void compare(double tolerance) const {
    const Values got[3]{read(master), read(m), read(v)};
    const Values* want[3]{&p2, &m2, &v2};
    for (int k = 0; k < 3; ++k) {
      double worst = 0;
      for (std::size_t i = 0; i < p2.size(); ++i) {
        const double e = std::abs(got[k][i] - (*want[k])[i]);
        worst = std::isnan(e) ? INFINITY : std::max(worst, e);
      }
      INFO("block " << k << ", worst error " << worst);
      CHECK(worst <= tolerance);
    }
  }
};
}  // namespace

TEST_CASE("adamw: ten steps against plain double loops", "[kernels][adamw]") {
  const DType dtype = GENERATE(DType::kF32, DType::kF64, DType::kBF16);
  const Isa best = current_isa();
  const Isa isa = GENERATE(Isa::kPortable, Isa::kAvx2, Isa::kAvx512);
  if (isa > best || (!default_device().is_cpu() && isa != Isa::kPortable)) return;
  set_isa(isa);
  Run run(dtype, 40000, {{0, 1, true}, {64, 33, false}, {128, 0, true}, {192, 39000, true}},
          {.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1});
  for (int i = 0; i < 10; ++i) run.step(i % 2 ? 1.0 / 3 : 0.01, 0.02 / (i + 1));
  run.compare(dtype == DType::kF64 ? 1e-13 : 2e-6);
  set_isa(best);
}

TEST_CASE("adamw: the bfloat16 values are the rounded master, everywhere", "[kernels][adamw]") {
  Run run(DType::kBF16, 500, {{0, 437, true}});
  for (int i = 0; i < 3; ++i) run.step(1, 0.01);
  const auto value = run.value.to_vector<bfloat16>();
  const auto master = run.master.to_vector<float>();
  for (std::size_t i = 0; i < 437; ++i)
    CHECK(static_cast<float>(value[i]) == static_cast<float>(bfloat16(master[i])));
  for (std::size_t i = 437; i < 500; ++i) CHECK(static_cast<float>(value[i]) == 0.0f);
  // Steps far below bfloat16's resolution add up in the master.
  CHECK(master[0] != static_cast<float>(number(0, 0)));
}

TEST_CASE("adamw: untouched parameters and padding stay as they are", "[kernels][adamw]") {
  Run run(DType::kF32, 256, {{64, 50, true}});
  run.step(1, 0.1);
  const auto p = run.master.to_vector<float>(), m = run.m.to_vector<float>();
  for (std::size_t i = 0; i < 256; ++i) {
    const bool inside = i >= 64 && i < 114;
    CHECK((p[i] != static_cast<float>(number(i, 0))) == inside);
    CHECK((m[i] != 0) == inside);
  }
}

TEST_CASE("adamw: the same bits for any thread count", "[kernels][adamw]") {
  const int before = num_threads();
  std::vector<float> first;
  for (const int threads : {1, 2, 7}) {
    set_num_threads(threads);
    Run run(DType::kF32, 200000, {{0, 70001, true}, {70016, 129984, false}});
    for (int i = 0; i < 3; ++i) run.step(0.5, 0.01);
    const auto p = run.master.to_vector<float>();
    if (first.empty()) first = p;
    CHECK(std::memcmp(p.data(), first.data(), p.size() * 4) == 0);
  }
  set_num_threads(before);
}

TEST_CASE("adamw: hundreds of segments, of any size and at any offset", "[kernels][adamw]") {
  const DType dtype = GENERATE(DType::kF32, DType::kF64, DType::kBF16);
  std::vector<Segment> segments;
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < 400; ++i) {
    segments.push_back({at, i * 7 % 23, i % 3 == 0});
    at += segments.back().size + i % 4;
  }
  segments.push_back({at + 1, 20000, true});
  Run run(dtype, at + 20003, segments, {.weight_decay = 0.1});
  for (int i = 0; i < 3; ++i) run.step(0.5, 0.01);
  run.compare(dtype == DType::kF64 ? 1e-13 : 2e-6);
}

TEST_CASE("B53: decoupled weight decay is 1 - lr * weight_decay", "[kernels][adamw]") {
  const Tensor p = Tensor::from(std::vector<float>{1, 1}, {2}),
               zero = Tensor::zeros({2}, DType::kF32);
  const Tensor m = zero.clone(), v = zero.clone();
  const std::vector<Segment> segments{{0, 1, true}, {1, 1, false}};
  StepState s;
  s.scale = 1;
  s.lr = 1e-3;
  s.step = 1;
  s.adamw.weight_decay = 0.1;
  const DeviceState state(s);
  kernels::adamw(p.stream(), {.value = p.view(),
                              .master = {},
                              .grads = zero,
                              .m = m.view(),
                              .v = v.view(),
                              .segments = segments,
                              .state = state.get()});
  CHECK(p.to_vector<float>() == std::vector<float>{0.9999f, 1.0f});
}

TEST_CASE("adamw: eps stands outside the square root, the first step is lr", "[kernels][adamw]") {
  const Tensor p = Tensor::zeros({1}, DType::kF64), m = p.clone(), v = p.clone();
  const Tensor g = Tensor::from(std::vector<double>{1e-8}, {1});
  const std::vector<Segment> segments{{0, 1, false}};
  StepState s;
  s.scale = 1;
  s.lr = 1;
  s.step = 1;
  const DeviceState state(s);
  kernels::adamw(p.stream(), {.value = p.view(),
                              .master = {},
                              .grads = g,
                              .m = m.view(),
                              .v = v.view(),
                              .segments = segments,
                              .state = state.get()});
  CHECK(p.item() == Approx(-0.5));  // 1e-8 / (1e-8 + 1e-8)
}

TEST_CASE("adamw: options are PyTorch's defaults, and nonsense is refused", "[kernels][adamw]") {
  using test::error_of;
  const AdamwOptions o;
  CHECK((o.beta1 == 0.9 && o.beta2 == 0.999 && o.eps == 1e-8 && o.weight_decay == 1e-2));
  CHECK_NOTHROW(kernels::check_options(o));
  CHECK(error_of([] { kernels::check_options(AdamwOptions{.beta1 = 1}); }) ==
        "adamw: beta1 must be in [0, 1), got 1");
  CHECK(error_of([] { kernels::check_options(AdamwOptions{.beta2 = -0.1}); }) ==
        "adamw: beta2 must be in [0, 1), got -0.1");
  CHECK(error_of([] { kernels::check_options(AdamwOptions{.eps = NAN}); }) ==
        "adamw: eps must be 0 or more, got nan");
  CHECK(error_of([] { kernels::check_options(AdamwOptions{.weight_decay = -1}); }) ==
        "adamw: weight_decay must be 0 or more, got -1");
}
